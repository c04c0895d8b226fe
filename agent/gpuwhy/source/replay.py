"""Replays recordings (``gpuwhy-recording/1``) as if they happened now.

A recording is JSON lines, gzip or plain: a header, then one row per reading. Any value may be
null or absent, which means "not read".
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from gpuwhy.source.reading import GpuFacts, GpuReading, HostReading, Part, Reading, SourceError

OTHER_PARTS = ("dcgm", "dcgm-exporter")  # what is recorded under its source's name
FORMAT = "gpuwhy-recording/1"
BUNDLED = Path(__file__).parent.parent / "recordings"
SUFFIXES = (".jsonl.gz", ".jsonl")

# A row of eight GPUs and ten thousand processes takes 4 MB; a longer line is no recording, and is not
# read into memory to find that out.
LONGEST_LINE = 2**24
LONGEST_TEXT = 256  # of what becomes a label
MOST_DEVICES = 64  # of one MIG instance; a card has 7 compute slices
PERIODS_S = (0.001, 86_400.0)
LATEST_S = 5e9  # year 2128: a later time is a broken clock
LONGEST_GAP_S = 366 * 86_400.0  # likewise
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _scaled(value: Any, scale: float) -> float | None:
    number = _number(value)
    return None if number is None or number <= 0 else number * scale


def _whole(value: Any) -> int | None:
    """An index, a pid, a count."""
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 2**31 else None


def _text(value: Any) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def _mig(gpu: Mapping[str, Any]) -> str:
    value = gpu.get("mig")
    number = _whole(value)
    return _text(value) if number is None else str(number)


def _seconds(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number <= LATEST_S else None


def _index(gpu: Mapping[str, Any], position: int) -> int:
    index = _whole(gpu.get("index"))
    return position if index is None else index


def _facts(gpu: Mapping[str, Any], position: int, driver: str) -> GpuFacts:
    share, split = _number(gpu.get("share_ratio")), gpu.get("split") is True
    return GpuFacts(
        index=_index(gpu, position),
        uuid=_text(gpu.get("uuid")) or f"GPU-unnamed-{position}",
        mig=_mig(gpu),
        model=_text(gpu.get("name")),
        pci_bus_id=_text(gpu.get("pci_bus_id")),
        compute_capability=_text(gpu.get("compute_capability")),
        driver=driver,
        profile=_text(gpu.get("profile")),
        share_ratio=share if share is not None and (0 < share <= 1 or (split and share == 0)) else 1.0,
        split=split,
        power_limit_watts=_scaled(gpu.get("power_limit_w"), 1.0),
        default_power_limit_watts=_scaled(gpu.get("default_power_limit_w"), 1.0),
        sm_clock_max_hertz=_scaled(gpu.get("max_sm_clock_mhz"), 1e6),
        memory_clock_max_hertz=_scaled(gpu.get("max_mem_clock_mhz"), 1e6),
        memory_total_bytes=_scaled(gpu.get("memory_total_bytes"), 1.0),
        pcie_generation=_whole(gpu.get("pcie_gen")),
        pcie_width=_whole(gpu.get("pcie_width")),
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """One file's header. ``readings`` plays the rest."""

    path: Path
    workload: str
    period_s: float
    cpus: int | None
    ticks_per_s: float
    gpus: tuple[GpuFacts, ...]

    def readings(self) -> Iterator[Reading]:
        """Every row with its recorded times.

        A file cut short (a recorder that was killed) ends at its last whole row. Where ``mono`` went
        back the host had started again: the first row after it is a restart.

        Raises:
            SourceError: a damaged file, or a row that is no JSON object or has no time; names file and line.

        """
        rows = _rows(self.path)
        next(rows, None)
        mono: float | None = None
        unix: float | None = None
        end = 0.0
        for number, row in rows:
            before = mono, unix
            mono, unix = _seconds(row.get("mono")), _seconds(row.get("t"))
            if mono is None and unix is None:
                raise _fault(self.path, number, "neither 'mono' nor 't' holds a time in seconds")
            # The two clocks are never mixed: one row without 'mono' would else be a gap of decades.
            passed = _passed(before[0], mono)
            if passed is None:
                passed = _passed(before[1], unix)
            restart = passed is None or not 0 <= passed <= LONGEST_GAP_S
            span = self.period_s if passed is None or restart else passed
            end = end + span if not restart else cast("float", unix) if mono is None else mono
            yield self._reading(row, end, span, mono, unix, restart=restart)

    def _reading(
        self,
        row: Mapping[str, Any],
        end: float,
        span: float,
        mono: float | None,
        unix: float | None,
        *,
        restart: bool,
    ) -> Reading:
        gpus = {
            (_index(gpu, position), _mig(gpu)): gpu
            for position, gpu in enumerate(_list(row.get("gpus")))
            if isinstance(gpu, dict)
        }
        return Reading(
            end_s=end,
            unix_s=end if unix is None else unix,
            span_s=span,
            period_s=self.period_s,
            gpus=tuple(_gpu_reading(facts, gpus.get((facts.index, facts.mig))) for facts in self.gpus),
            host=self._host(row, end, span, mono),
            restart=restart,
            workload=self.workload,
        )

    def _host(
        self, row: Mapping[str, Any], end: float, span: float, mono: float | None
    ) -> HostReading | None:
        host, processes, cgroups = row.get("host"), row.get("procs"), row.get("cgroups")
        values = (
            {**host, "cpus": self.cpus, "clock_ticks_per_s": self.ticks_per_s}
            if isinstance(host, dict) and host
            else None
        )
        if values is None and not isinstance(processes, list):
            return None
        return HostReading(
            end_s=end,
            span_s=span,
            values=values,
            processes=tuple(self._process(process, mono) for process in _maps(processes))
            if isinstance(processes, list)
            else None,
            cgroups={key: value for key, value in cgroups.items() if isinstance(value, dict)}
            if isinstance(cgroups, dict)
            else None,
        )

    def _process(self, process: Mapping[str, Any], mono: float | None) -> Mapping[str, Any]:
        """``process`` with its age: start ticks count from boot, as the recorded monotonic clock does."""
        start = _number(process.get("start_ticks"))
        if start is None or mono is None:
            return process
        return {**process, "age_s": max(0.0, mono - start / self.ticks_per_s)}


def _passed(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before


def _by_pid(value: Any) -> dict[int, Any] | None:
    if not isinstance(value, dict):
        return None
    return {
        int(pid): item for pid, item in value.items() if pid.isascii() and pid.isdecimal() and len(pid) < 10
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _gpu_reading(facts: GpuFacts, gpu: Mapping[str, Any] | None) -> GpuReading:
    if gpu is None:
        return GpuReading(facts, up=False)
    profiling = gpu.get("gpm")
    owners = gpu.get("procs")
    apart = {"gpm", "procs", "holder", *OTHER_PARTS}
    parts = [Part("nvml", {key: value for key, value in gpu.items() if key not in apart})]
    if isinstance(profiling, dict):
        parts.insert(0, Part("nvml-gpm", profiling))
    for source in OTHER_PARTS:
        values = gpu.get(source)
        if isinstance(values, dict):
            period, span = _scaled(values.get("period_s"), 1.0), _scaled(values.get("span_s"), 1.0)
            parts.append(Part(source, values, span_s=span, period_s=period))
    return GpuReading(
        facts,
        parts=tuple(parts),
        owners=tuple(pid for owner in _maps(owners) if (pid := _whole(owner.get("pid"))))
        if isinstance(owners, list)
        else None,
        holder=_text(gpu.get("holder")),
        process_use=_by_pid(gpu.get("use")),
        device_uuids=tuple(
            uuid for item in _list(gpu.get("devices"))[:MOST_DEVICES] if (uuid := _text(item))
        ),
    )


def _fault(
    path: Path, line: int, what: str, remedy: str = "cut the line out, or record again"
) -> SourceError:
    return SourceError(f"{path}: line {line}: {what}; {remedy}")


def _unreadable(path: Path, error: Exception) -> SourceError:
    why = getattr(error, "strerror", None) or error
    return SourceError(f"{path}: cannot be read ({why}); check the path and its permissions")


def _open(path: Path) -> IO[bytes]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(f"{path}: not a file; name a recording, or a folder of them")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each line that is not blank, of a file that may end in mid-write."""
    number = 0
    with _open(path) as file:
        while True:
            number += 1
            try:
                line = file.readline(LONGEST_LINE)
            except EOFError:
                return
            except (OSError, zlib.error) as error:
                raise _fault(
                    path, number, f"the file is damaged from here on ({error})", "copy or record it again"
                ) from error
            if not line:
                return
            if len(line) == LONGEST_LINE:
                raise _fault(path, number, f"longer than {LONGEST_LINE} bytes, which no row is")
            if not line.strip():
                continue
            try:
                row = _decode(line, path, number)
            except SourceError:
                if number > 1 and not line.endswith(b"\n"):
                    return
                raise
            yield number, row


def _decode(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        # Python's own recorder may have written NaN and Infinity, which are no JSON, and the bytes of a
        # process name as lone surrogates, which nothing could print.
        try:
            row = json.loads(_SURROGATE.sub(r"\\ufffd", line.decode("utf-8", "replace")))
        except (ValueError, RecursionError) as error:
            raise _fault(path, number, f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise _fault(path, number, f"expected an object, found {type(row).__name__}")
    return row


def load(path: Path) -> Recording:
    """Reads a recording's header.

    Raises:
        SourceError: no such file, or not a recording; names the file, the line, the key and the remedy.

    """
    number, header = next(_rows(path), (0, {}))
    if not number:
        raise SourceError(f"{path}: empty; expected a {FORMAT} recording")

    def fault(what: str) -> SourceError:
        return _fault(path, number, what, "correct the header, or record again")

    if header.get("format") != FORMAT:
        raise fault(f"format is {_shown(header.get('format'))}, expected {FORMAT!r}")
    period = _number(header.get("period_s"))
    if period is None or not PERIODS_S[0] <= period <= PERIODS_S[1]:
        raise fault(
            f"period_s is {_shown(header.get('period_s'))}, expected seconds from {PERIODS_S[0]} to {PERIODS_S[1]:.0f}"
        )
    host = header.get("host")
    host = host if isinstance(host, dict) else {}
    driver = _text(header.get("driver"))
    described = header.get("gpus")
    if not isinstance(described, list) or not described:
        raise fault(f"gpus is {_shown(described)}, expected a list with at least one GPU")
    gpus: list[GpuFacts] = []
    for position, gpu in enumerate(described):
        if not isinstance(gpu, dict):
            raise fault(f"gpus[{position}] is {_shown(gpu)}, expected an object")
        facts = _facts(gpu, position, driver)
        for other, seen in enumerate(gpus):
            if facts.mig == seen.mig and (facts.uuid == seen.uuid or facts.index == seen.index):
                key = "uuid" if facts.uuid == seen.uuid else "index"
                raise fault(f"gpus[{position}].{key} is that of gpus[{other}], expected one of its own")
        gpus.append(facts)
    return Recording(
        path=path,
        workload=_text(header.get("workload")),
        period_s=period,
        cpus=_whole(host.get("cpus")),
        ticks_per_s=_scaled(host.get("clock_ticks_per_s"), 1.0) or 100.0,
        gpus=tuple(gpus),
    )


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return repr(value)[:60]


def find(path: Path) -> list[Path]:
    """A recording, or all recordings of a folder in name order.

    Raises:
        SourceError: a folder that holds none or cannot be read.

    """
    try:
        if not path.is_dir():
            return [path]
        found = sorted(
            file
            for file in path.iterdir()
            if file.name.endswith(SUFFIXES) and not file.name.startswith(".") and file.is_file()
        )
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not found:
        raise SourceError(f"{path}: no recording (*.jsonl.gz or *.jsonl) in this folder; name another one")
    return found


class ReplaySource:
    """Plays recordings side by side, each path as a host of its own with its own GPUs.

    Rows are re-stamped; recorded spans are kept, so at ``speed`` 10 ten recorded seconds pass, and are
    counted, in each real one.
    """

    name = "replay"

    def __init__(self, paths: Iterable[Path], *, speed: float = 1.0, loop: bool = False) -> None:
        self._players = [[load(file) for file in find(path)] for path in paths]
        if not self._players:
            raise SourceError("nothing to replay; name a recording, or a folder of them")
        self._speed = speed
        self._loop = loop
        self.period_s = max(recording.period_s for player in self._players for recording in player)

    def schedule(self) -> Iterator[tuple[float, Reading]]:
        """(seconds after the start when it is due, reading on the virtual clock), in due order.

        The virtual clock starts at 0 and runs ``speed`` times as fast as the real one; ``unix_s`` is
        left as recorded for the caller to stamp.
        """
        names = _Names()
        streams = [self._play(origin, player, names) for origin, player in enumerate(self._players)]
        for end, _origin, reading in heapq.merge(*streams, key=lambda item: item[:2]):
            yield end / self._speed, reading

    def _play(
        self, origin: int, player: list[Recording], names: _Names
    ) -> Iterator[tuple[float, int, Reading]]:
        now = 0.0
        while True:
            rows = 0
            for recording in player:
                for reading in recording.readings():
                    rows += 1
                    now += reading.span_s
                    yield (
                        now,
                        origin,
                        replace(
                            reading,
                            end_s=now,
                            gpus=tuple(
                                replace(gpu, facts=names.distinct(origin, gpu.facts)) for gpu in reading.gpus
                            ),
                            host=None if reading.host is None else replace(reading.host, end_s=now),
                            origin=origin,
                        ),
                    )
            if not self._loop or not rows:
                return


class _Names:
    """Gives the GPUs of paths that play side by side distinct indices and UUIDs."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str, str], tuple[int, str]] = {}
        self._indices: dict[tuple[int, str], int] = {}

    def distinct(self, origin: int, facts: GpuFacts) -> GpuFacts:
        key = (origin, facts.uuid, facts.mig)
        name = self._names.get(key)
        if name is None:
            index = self._indices.setdefault((origin, facts.uuid), len(self._indices))
            alone = not any(uuid == facts.uuid for other, uuid, _ in self._names if other != origin)
            uuid = facts.uuid if alone else f"{facts.uuid}-replay{origin + 1}"
            name = self._names[key] = (index, uuid)
        return replace(facts, index=name[0], uuid=name[1])


def paths(names: Iterable[str]) -> list[Path]:
    """Where recordings lie; "bundled" stands for those that come with the package, side by side."""
    found: list[Path] = []
    for name in names:
        found += find(BUNDLED) if name == "bundled" else [Path(name).expanduser()]
    return found
