"""Writes readings as a recording (``gpuwhy-recording/1``) that ``source.replay`` plays."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import msgspec

from gpuwhy.source.reading import GpuFacts, GpuReading, HostReading, Reading, SourceError
from gpuwhy.source.replay import FORMAT

PROFILING, PLAIN = "nvml-gpm", "nvml"
HOST_FACTS = ("cpus", "clock_ticks_per_s")


def _clean(value: Any) -> Any:
    """``value`` as JSON can hold it: a number that is not finite, or larger than any counter, was not read."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) >= 2**63:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def header(
    gpus: Iterable[GpuFacts], host: HostReading | None, *, period_s: float, workload: str
) -> dict[str, Any]:
    """A recording's first line."""
    gpus = list(gpus)
    values = {} if host is None else host.values or {}
    return {
        "format": FORMAT,
        "workload": workload,
        "period_s": period_s,
        "driver": gpus[0].driver if gpus else "",
        "host": {name: values.get(name) for name in HOST_FACTS},
        "gpus": [_gpu_header(gpu) for gpu in gpus],
    }


def _scaled(value: float | None, scale: float) -> float | None:
    """``value`` in the recording's unit, whole where it is: others read these as integers."""
    if value is None:
        return None
    scaled = value / scale
    return int(scaled) if scaled == int(scaled) else scaled


def _gpu_header(gpu: GpuFacts) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.model,
        "pci_bus_id": gpu.pci_bus_id,
        "compute_capability": gpu.compute_capability,
        "power_limit_w": gpu.power_limit_watts,
        "default_power_limit_w": gpu.default_power_limit_watts,
        "max_sm_clock_mhz": _scaled(gpu.sm_clock_max_hertz, 1e6),
        "max_mem_clock_mhz": _scaled(gpu.memory_clock_max_hertz, 1e6),
        "memory_total_bytes": _scaled(gpu.memory_total_bytes, 1.0),
        "pcie_gen": gpu.pcie_generation,
        "pcie_width": gpu.pcie_width,
    }
    if gpu.mig:
        fields |= {"mig": gpu.mig, "profile": gpu.profile, "share_ratio": gpu.share_ratio}
    elif gpu.split:
        fields |= {"split": True, "share_ratio": gpu.share_ratio}
    return fields


def row(reading: Reading) -> dict[str, Any]:
    """One further line."""
    host = reading.host
    line: dict[str, Any] = {
        "t": reading.unix_s,
        "mono": reading.end_s,
        "gpus": [_gpu_row(gpu) for gpu in reading.gpus if gpu.up],
        "host": None,
        "procs": None,
    }
    if host is not None:
        values = host.values or {}
        line["host"] = {name: value for name, value in values.items() if name not in HOST_FACTS}
        line["procs"] = None if host.processes is None else [dict(process) for process in host.processes]
        if host.cgroups:
            line["cgroups"] = {pid: dict(cgroup) for pid, cgroup in host.cgroups.items()}
    cleaned: dict[str, Any] = _clean(line)
    return cleaned


def _gpu_row(gpu: GpuReading) -> dict[str, Any]:
    line: dict[str, Any] = {"index": gpu.facts.index}
    if gpu.facts.mig:
        line["mig"] = gpu.facts.mig
    for part in gpu.parts:
        if part.source == PROFILING:
            line["gpm"] = dict(part.values)
        elif part.source == PLAIN:
            line |= {name: value for name, value in part.values.items() if name not in line}
        else:
            pace = {} if part.period_s is None else {"period_s": part.period_s, "span_s": part.span_s}
            line[part.source] = {**part.values, **pace}
    line.setdefault("gpm", None)
    if gpu.holder:
        line["holder"] = gpu.holder
    if gpu.process_use is not None:
        line["use"] = dict(gpu.process_use)
    if gpu.device_uuids:
        line["devices"] = list(gpu.device_uuids)
    line["procs"] = None if gpu.owners is None else [{"pid": pid} for pid in gpu.owners]
    return line


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if path.name.endswith(".gz") else open


class Recorder:
    """A recording that is being written. Every row reaches the file at once: killed, it ends at a whole row.

    Raises:
        SourceError: the file cannot be made or written; names it and says why.

    """

    def __init__(self, path: Path, *, period_s: float, workload: str) -> None:
        self.path = path
        self.rows = 0
        self._known: set[tuple[str, str]] = set()
        self._period_s = period_s
        self._workload = workload
        try:
            self._file: IO[bytes] = cast("IO[bytes]", _opener(path)(path, "xb"))
        except FileExistsError as error:
            raise SourceError(f"{path}: is there already; name another file or remove it") from error
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be written ({error.strerror}); name a file in a folder that can"
            ) from error

    def __enter__(self) -> Recorder:  # noqa: PYI034  Self comes with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            if kind is None:
                raise SourceError(
                    f"{self.path}: {failure.strerror}; what was written before is kept"
                ) from failure

    def write(self, reading: Reading) -> None:
        """Appends a reading; the first one with a GPU brings the header."""
        if not (self._known or reading.gpus):
            return
        keys = {gpu.facts.key for gpu in reading.gpus}
        self._known = self._known or keys
        if keys - self._known:
            raise SourceError(
                f"{self.path}: the GPUs of this host have changed, as by MIG; what was written before is kept: record again"
            )
        lines = (
            []
            if self.rows
            else [
                header(
                    (gpu.facts for gpu in reading.gpus),
                    reading.host,
                    period_s=self._period_s,
                    workload=self._workload,
                )
            ]
        )
        lines.append(row(reading))
        try:
            self._file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            self._file.flush()
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror}; what was written before is kept") from error
        self.rows += 1
