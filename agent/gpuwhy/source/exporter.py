"""Scrapes a dcgm-exporter that already serves this host's GPUs, and hands on what is new.

Its text carries no times, and DCGM fills it every 30 s as a rule, so scrapes repeat themselves: only a
value that changed proves that the others of its GPU are new too. Names, labels and formats are those of
dcgm-exporter 2.6 to 4.8 and of the renamed labels after it. To read one more field, add a row to
``dcgm_fields`` and to ``COUNTERS_FILE``.
"""

from __future__ import annotations

import functools
import http.client
import logging
import math
import re
import socket
import ssl
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from gpuwhy.source.dcgm_fields import FIELDS, Field
from gpuwhy.source.deadline import Timed, left
from gpuwhy.source.mig_slices import slices_of
from gpuwhy.source.reading import Capability, GpuFacts, GpuReading, NoGpuError, Part, Reading, SourceError

log = logging.getLogger(__name__)

NAME = "dcgm-exporter"
URL = "http://127.0.0.1:9400/metrics"
MOST_BYTES = 4 * 2**20  # 8 GPUs with all fields are 100 KB
MOST_GPUS = 64  # that one host has, with those that were exchanged since the agent's start
MOST_LETTERS = 256  # of a label

DEFAULT_PERIOD_S = 30.0  # dcgm-exporter's own
# One step up after three scrapes with nothing new, one down after three with news: an exporter at 1 s is
# scraped each second, one at 30 s each 5 s, so that news are never older than that.
DELAYS_S = (1.0, 2.0, 5.0)
STREAK = 3
EARLY_S = 0.25  # how much before its time a scrape may come: ticks are not exact
SPACINGS = 5  # that the period is learnt from; they are known from three on
SELDOM_S = 2.5  # between new values, from which a shorter interval is advised
STILL_S, STILL_PERIODS = 90.0, 3  # without any change, after which an engine is taken for dead

# What a counters file of dcgm-exporter says of each field: name, type, help, and the dcgm-exporter that
# knew the name first ("" = any). An exporter does not start with a name it does not know.
COUNTERS_FILE: tuple[tuple[str, str, str, str], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock in MHz", ""),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock in MHz", ""),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Reasons that hold clocks down as a bit mask", ""),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature in degrees Celsius", ""),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "Core temperature in degrees Celsius", ""),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Board power in watts", ""),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", "gauge", "Board power at this moment in watts", "3.1.7"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since driver load in mJ", ""),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Power limit in force in watts", ""),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "Time with a kernel or copy on the GPU in percent", ""),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Time with any access to device memory in percent", ""),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Device memory held in MiB", ""),
    ("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Time held down by the power limit in ns", ""),
    ("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "counter", "Time held down by a boost group in ns", ""),
    (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS",
        "counter",
        "Time held down by the driver for heat in ns",
        "4.4.0",
    ),
    (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
        "counter",
        "Time held down by the hardware for heat in ns",
        "4.4.0",
    ),
    (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
        "counter",
        "Time held down by the external power brake in ns",
        "4.4.0",
    ),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time with the graphics or compute engine busy", ""),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "Ratio of time with a warp on an SM", ""),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "Ratio of resident warps to the most that fit", ""),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles with the tensor cores busy", ""),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles with the memory interface busy", ""),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gauge", "Ratio of cycles with the FP64 pipe busy", ""),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge", "Ratio of cycles with the FP32 pipe busy", ""),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gauge", "Ratio of cycles with the FP16 pipe busy", ""),
    ("DCGM_FI_PROF_PIPE_INT_ACTIVE", "gauge", "Ratio of cycles with the integer pipe busy", "3.0.0"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe bytes per second from the GPU", ""),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "PCIe bytes per second to the GPU", ""),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "gauge", "NVLink bytes per second from the GPU", ""),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", "gauge", "NVLink bytes per second to the GPU", ""),
)

_PROFILE = re.compile(r"(\d{1,2})g\.\S+")  # in 1g.12gb+me, and after what is before it in "MIG 1c.3g.40gb"

_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(?:,\s*|\Z)', re.ASCII | re.DOTALL)
_FIELDS: Mapping[str, Field] = {name: each for each in FIELDS for name in (each.name, *each.also)}
_NO_UTIL = {203, 204}  # the driver gives no such thing in MIG mode


# --- the text, over HTTP


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _connected(address: SplitResult, ends_s: float) -> socket.socket:
    host = address.hostname or ""
    port = address.port or (443 if address.scheme == "https" else 80)
    failure: OSError = ConnectionRefusedError()
    for *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            sock = socket.create_connection((str(where[0]), port), left(ends_s))
            if address.scheme != "https":
                return sock
            sock.settimeout(left(ends_s))
            return _tls().wrap_socket(sock, server_hostname=host)
        except OSError as error:
            failure = error
    raise failure


def _answer(url: str, timeout_s: float) -> bytes:
    ends_s = time.monotonic() + timeout_s
    address = urlsplit(url)
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    if address.scheme not in {"http", "https"} or not address.hostname or " " in target:
        raise ValueError("not an http:// or https:// address")
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {address.netloc}\r\nUser-Agent: gpuwhy\r\nAccept: text/plain\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    ).encode("ascii")
    with closing(_connected(address, ends_s)) as sock:
        sock.settimeout(left(ends_s))
        sock.sendall(request)
        with http.client.HTTPResponse(cast("Any", Timed(sock, ends_s)), method="GET") as response:
            response.begin()
            if 300 <= response.status < 400:
                elsewhere = _shown(response.headers.get("Location", "nowhere"))
                raise SourceError(f"{url} redirects to {elsewhere}; set the exporter's url to where it is")
            if response.status != http.HTTPStatus.OK:
                raise SourceError(
                    f"{url} answers {response.status} {_shown(response.reason)}; see dcgm-exporter's log, "
                    "and check the url"
                )
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise SourceError(f"{url} compresses what was asked for plain; take the proxy out of the way")
            body = response.read(MOST_BYTES + 1)
            if len(body) > MOST_BYTES:
                raise SourceError(
                    f"{url} sends more than {MOST_BYTES >> 20} MiB, which no exporter does; check the url"
                )
            if response.length:
                raise http.client.IncompleteRead(body, response.length)
            if "html" in response.headers.get("Content-Type", "") or body.lstrip()[:1] == b"<":
                raise SourceError(f"{url} is a web page, not metrics; as a rule the path is /metrics")
            return body


def _shown(text: str) -> str:
    """What a server said, fit for a message."""
    return text.strip().encode("unicode_escape").decode()[:200]


def fetch(url: str, timeout_s: float) -> str:
    """What ``url`` serves, in ``timeout_s`` at most, whole lines only. The connection is closed again.

    Raises:
        NoGpuError: nothing listens there.
        SourceError: anything else but text that came in time; names the url and the remedy.
    """
    if "@" in url:
        raise SourceError("the exporter's url holds a user name or an @, which is not supported")
    try:
        text = _answer(url, timeout_s).decode("utf-8", "replace")
    except ConnectionRefusedError:
        raise NoGpuError(
            f"nothing listens at {url}; start dcgm-exporter there (it ends with the engine that it reads), or set "
            "agent.exporter_url"
        ) from None
    except TimeoutError:
        raise SourceError(
            f"{url} did not answer within {timeout_s:g} s; see dcgm-exporter's log, and whether nvidia-smi hangs"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = _shown(str(error) or type(error).__name__)
        raise SourceError(f"{url} cannot be read ({why}); check the url and dcgm-exporter's log") from None
    return text[: text.rfind("\n") + 1]


# --- the text's meaning


@dataclass(frozen=True, slots=True)
class _Labels:
    """What a series' labels say; ``uuid`` is "" where it is not of a GPU."""

    uuid: str
    mig: str
    profile: str
    gpu: str
    pci_bus_id: str
    model: str
    driver: str
    pod: str
    job: str


def _labels(block: str) -> _Labels:
    """The labels of what stands between a series' braces.

    Raises:
        ValueError: they are not labels.
    """
    pairs: list[tuple[str, str]] = []
    at = len(block) - len(block.lstrip())
    while at < len(block):
        match = _LABEL.match(block, at)
        if match is None:
            raise ValueError(block)
        pairs.append((match[1], match[2]))
        at = match.end()
    found: dict[str, str] = {}
    # In order, so that the exporter's own UUID goes before a pod's label "uuid", and "exported_pod", by
    # which a Prometheus in between keeps the GPU's pod, before the exporter's.
    for name, value in sorted(pairs):
        if value:
            text = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], value)
            # They come to terminals and pages; whoever has the port could send what these obey.
            plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:MOST_LETTERS])
            found.setdefault(name.lower().removeprefix("exported_"), plain)
    pod = found.get("pod") or found.get("pod_name", "")
    namespace = found.get("namespace") or found.get("pod_namespace", "")
    return _Labels(
        uuid=found.get("uuid", ""),
        mig=found.get("gpu_i_id", ""),
        profile=found.get("gpu_i_profile", ""),
        gpu=found.get("gpu", ""),
        pci_bus_id=found.get("pci_bus_id", ""),
        model=found.get("modelname", ""),
        driver=found.get("dcgm_fi_driver_version", ""),
        pod=f"{namespace}/{pod}" if pod and namespace else pod,
        job=found.get("hpc_job", ""),
    )


def _number(text: str, *, integer: bool) -> float | None:
    """A sample's value; None where it stands for no value (NaN, infinite, DCGM's blanks).

    Raises:
        ValueError: it is no number.
    """
    shown = text.split()
    if not 1 <= len(shown) <= 2 or len(shown[0]) > 40 or "_" in shown[0]:
        raise ValueError(text)
    try:
        number: float = int(shown[0]) if integer else float(shown[0])
    except ValueError:
        number = float(shown[0])
    if not math.isfinite(number):
        return None
    if not integer:
        return number if number < 2**47 else None
    number = int(number)
    return None if number >= 0x7FFFFFFFFFFFFFF0 or 0x7FFFFFF0 <= number < 0x7FFFFFF4 else number


@dataclass(slots=True)
class _Series:
    """All that one scrape says of a GPU, or of one of its instances."""

    labels: _Labels
    values: dict[str, tuple[bool, float]] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)

    def add(self, labels: _Labels, name: str, number: float | None) -> None:
        """Takes a value in.

        A GPU that pods share comes once for each, with the same values; but its utilisation and memory
        come with each pod's part too, beside those of the whole, which have no pod.
        """
        if labels.pod:
            self.pods.add(labels.pod)
        if labels.job:
            self.jobs.add(labels.job)
        if number is not None:
            said = (not labels.pod, number)
            self.values[name] = max(self.values.get(name, said), said)

    @property
    def holder(self) -> str:
        return ",".join(sorted(self.pods) or sorted(f"job:{job}" for job in self.jobs))


class Parser:
    """Reads dcgm-exporter's text. A line that makes no sense is left out and counted in ``skipped``."""

    def __init__(self) -> None:
        self.skipped = 0
        self._blocks: dict[str, _Labels] = {}  # of the scrape before: nearly all come again

    def series(self, text: str) -> dict[tuple[str, str], _Series]:
        """By UUID and GPU instance: the values of the fields of ``dcgm_fields``. Never raises."""
        found: dict[tuple[str, str], _Series] = {}
        blocks: dict[str, _Labels] = {}
        for line in text.split("\n"):
            name, _, rest = line.partition("{")
            wanted = _FIELDS.get(name.strip())
            if wanted is None:
                continue
            block, _, value = rest.rpartition("}")
            try:
                labels = blocks.get(block) or self._blocks.get(block) or _labels(block)
                number = _number(value, integer=wanted.integer)
            except ValueError:
                self.skipped += 1
                continue
            blocks[block] = labels
            if labels.uuid:
                key = (labels.uuid, labels.mig)
                series = found.get(key)
                if series is None:
                    series = found[key] = _Series(labels)
                series.add(labels, wanted.name, number)
        self._blocks = blocks
        return found


# --- the source


@dataclass(frozen=True, slots=True)
class _Row:
    facts: GpuFacts
    values: Mapping[str, float]
    holder: str


@dataclass(slots=True)
class _Gpu:
    """What is known of a board: its rows, and when its values changed.

    ``since_s`` is from when its next values count: the last change, or (``timed`` is False) the scrape
    that showed it first.
    """

    changed_s: float
    since_s: float
    rows: tuple[_Row, ...] = ()
    values: Mapping[tuple[str, str], float] = field(default_factory=dict)
    timed: bool = False
    spacings: deque[float] = field(default_factory=lambda: deque(maxlen=SPACINGS))


class ExporterSource:
    """Reads the GPUs that a dcgm-exporter serves at ``url``.

    ``read`` scrapes when it is time to, and hands a GPU's values on when they are new. ``period_s`` is
    how often they are, as learnt from the changes; 30 s until known. ``skipped`` counts lines that made
    no sense. A scrape takes ``timeout_s`` at most, and leaves no connection open.
    """

    name = NAME

    def __init__(
        self,
        *,
        url: str = URL,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        timeout_s: float = 2.0,
        fetch: Callable[[str, float], str] = fetch,
    ) -> None:
        self.url = url
        self.period_s = DEFAULT_PERIOD_S
        self.yielding = ""
        self._clock = clock
        self._wall = wall
        self._timeout_s = timeout_s
        self._fetch = fetch
        self._parser = Parser()
        self._indices: dict[str, int] = {}
        self._gpus: dict[str, _Gpu] = {}
        self._shown: tuple[str, ...] = ()  # those that the last scrape had
        self._profiled = False
        self._last_s: float | None = None
        self._scraped_s = -math.inf
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self._failed = False
        self._step = self._streak = 0
        self._due_s = now + DELAYS_S[0]

    @property
    def skipped(self) -> int:
        """Lines left out so far because they made no sense."""
        return self._parser.skipped

    def start(self) -> tuple[GpuFacts, ...]:
        """Scrapes once, to know the GPUs: how old the values are cannot be told, so they are not handed on.

        Raises:
            NoGpuError: nothing listens at the url, or what does has no GPU.
            SourceError: no answer, or none that can be used, or the values have stood still since long
                before; names the url and the remedy.
        """
        self.close()
        series = self._scrape()
        now = self._clock()
        self._shown, self._profiled, self.yielding = (), False, ""
        self._take(now, series)
        self._check_life()
        self._begin(now)
        self._last_s = now
        return tuple(row.facts for row in self._rows())

    def read(self) -> Reading:
        """Every GPU of the last scrape; with a part where this call brought something new of it.

        Raises:
            SourceError: not started; two scrapes in a row failed; or no value of any GPU has changed for
                three periods and 90 s, so that what fills the exporter must be dead.
        """
        if self._last_s is None:
            raise SourceError("the exporter is not open: start() comes before read()")
        now = self._clock()
        span, self._last_s = now - self._last_s, now
        fresh = self._look(now) if now >= self._due_s - EARLY_S else {}
        self._check_life()
        return Reading(
            end_s=now,
            unix_s=self._wall(),
            span_s=span if span > 0 else self.period_s,
            period_s=self.period_s,
            gpus=tuple(
                GpuReading(
                    row.facts,
                    parts=(Part(NAME, row.values, fresh[row.facts.uuid], self.period_s),)
                    if row.values and row.facts.uuid in fresh
                    else (),
                    holder=row.holder,
                )
                for row in self._rows()
            ),
        )

    def close(self) -> None:
        """Forgets that it was started; there is nothing to give back."""
        self._last_s = None

    def capabilities(self) -> dict[tuple[str, str], dict[str, Capability]]:
        """By GPU and raw name: whether the last scrape had it, or why not."""
        rows = self._rows()
        served = {name for row in rows for name in row.values}
        return {
            row.facts.key: {each.name: self._capability(row, each, served) for each in FIELDS} for row in rows
        }

    def advice(self) -> tuple[str, ...]:
        """What to change in dcgm-exporter so that it says more, going by the scrapes since the start.

        A line each: those for its counters file, as they are, and one on its interval.
        """
        rows = self._rows()
        served = {name for row in rows for name in row.values}
        all_split = all(row.facts.split or row.facts.mig for row in rows)
        lines: dict[str, list[str]] = {}
        for name, kind, about, since in COUNTERS_FILE:
            wanted = _FIELDS[name]
            if wanted.name not in served and not (all_split and wanted.id in _NO_UTIL):
                lines.setdefault(since, []).append(f"{name}, {kind}, {about}.")
        told = ["lines for its counters file (option -f), where they are not yet in it:"] if lines else []
        if not any(_FIELDS[name].profiles for name in served if name in _FIELDS):
            told.insert(
                0, "no profiling so far: it has none in its first interval (30 s unless told otherwise);"
            )
        for since in sorted(lines):
            if since:
                told.append(f"# dcgm-exporter {since} or later; an older one does not start with these:")
            told += lines[since]
        quiet = min((self._scraped_s - self._gpus[uuid].since_s for uuid in self._shown), default=0.0)
        how = f"each {self.period_s:.0f} s" if self._spacings() else f"not within {quiet:.0f} s of looking"
        if (self.period_s if self._spacings() else quiet) >= SELDOM_S:
            told.append(
                f"its values are new {how} (30 s unless told otherwise): start it with `-c 1000` or "
                "DCGM_EXPORTER_INTERVAL=1000 (milliseconds), so that a change is seen within seconds"
            )
        return tuple(told)

    def _rows(self) -> list[_Row]:
        return [row for uuid in self._shown for row in self._gpus[uuid].rows]

    def _scrape(self) -> dict[tuple[str, str], _Series]:
        series = self._parser.series(self._fetch(self.url, self._timeout_s))
        if not series:
            raise NoGpuError(
                f"{self.url} answers but serves no GPU: no series DCGM_FI_... that is known here with a label "
                "UUID; see dcgm-exporter's log, and its counters file (-f)"
            )
        return series

    def _look(self, now: float) -> dict[str, float]:
        """Scrapes: by UUID the seconds for which new values speak. One failure is passed over."""
        try:
            series = self._scrape()
        except SourceError as error:
            if self._failed:
                raise SourceError(str(error)) from error
            self._failed, self._due_s = True, now + DELAYS_S[0]
            log.info("%s; trying once more", error)
            return {}
        self._failed = False
        fresh = self._take(now, series)
        # Up one step or down, as three scrapes in a row agree.
        self._streak = max(self._streak, 0) + 1 if fresh else min(self._streak, 0) - 1
        if abs(self._streak) == STREAK:
            self._step = max(0, min(len(DELAYS_S) - 1, self._step + (-1 if fresh else 1)))
            self._streak = 0
        self._due_s = now + DELAYS_S[self._step]
        spacings = self._spacings()
        self.period_s = (
            max(statistics.median(spacings), DELAYS_S[self._step]) if spacings else DEFAULT_PERIOD_S
        )
        return {uuid: min(span, 2 * self.period_s) for uuid, span in fresh.items()}

    def _spacings(self) -> list[float]:
        """The seconds between changes, of all GPUs; nothing until some GPU has shown enough."""
        all_of = [self._gpus[uuid].spacings for uuid in self._shown]
        return [each for some in all_of for each in some] if any(len(some) >= 3 for some in all_of) else []

    def _take(self, now: float, series: Mapping[tuple[str, str], _Series]) -> dict[str, float]:
        """Takes a scrape in: by UUID the seconds since the change before, where something changed."""
        fresh: dict[str, float] = {}
        boards: dict[str, list[_Series]] = {}
        for each in series.values():
            boards.setdefault(each.labels.uuid, []).append(each)
        self._place(boards)
        # After a pause nobody knows how old the values are, nor whether others spoke meanwhile.
        paused = now - self._scraped_s > 2 * self.period_s + DELAYS_S[-1]
        for uuid, parts in boards.items():
            rows = _board_rows(self._indices[uuid], parts)
            values = {(row.facts.mig, name): value for row in rows for name, value in row.values.items()}
            gpu = self._gpus.setdefault(uuid, _Gpu(changed_s=now, since_s=now))
            changed = not values.items() <= gpu.values.items()  # a value that is gone is no news
            if changed:
                gpu.changed_s = now
            if paused or uuid not in self._shown:
                gpu.since_s, gpu.timed = now, False
            elif changed:
                fresh[uuid] = now - gpu.since_s
                if gpu.timed:
                    gpu.spacings.append(fresh[uuid])
                gpu.since_s, gpu.timed = now, True
            gpu.rows, gpu.values = rows, values
        self._scraped_s = now
        self._shown = tuple(sorted(boards, key=self._indices.__getitem__))
        self._note_profiling()
        return fresh

    def _place(self, boards: Mapping[str, list[_Series]]) -> None:
        """Gives new GPUs the next indices in the order of their PCI addresses, which is NVML's.

        ``gpu`` and ``device`` hold DCGM's own number; it stands in where older exporters give no address.
        """
        labels = [parts[0].labels for uuid, parts in boards.items() if uuid not in self._indices]
        addressed = all(each.pci_bus_id for each in labels)
        for each in sorted(
            labels,
            key=lambda each: (each.pci_bus_id.lower() if addressed else "", _ordinal(each.gpu), each.uuid),
        ):
            self._indices[each.uuid] = len(self._indices)
        if len(self._indices) > MOST_GPUS:
            raise SourceError(
                f"{self.url} has served {len(self._indices)} GPUs, more than one host has; name the exporter of this "
                "host alone, not a service of several"
            )

    def _note_profiling(self) -> None:
        served = [_FIELDS[name] for row in self._rows() for name in row.values]
        profiles = any(wanted.profiles for wanted in served)
        self._profiled |= profiles
        self.yielding = (
            "the exporter's profiling values are gone: profiling is paused (`dcgmi profile --resume` ends that), "
            "or another profiler owns the counters"
            if self._profiled and not profiles and served
            else ""
        )

    def _check_life(self) -> None:
        changed_s = max(self._gpus[uuid].changed_s for uuid in self._shown)
        if self._scraped_s - changed_s > max(STILL_S, STILL_PERIODS * self.period_s):
            since = datetime.fromtimestamp(self._wall() - (self._clock() - changed_s), tz=timezone.utc)
            raise SourceError(
                f"{self.url} answers but its values stand still since {since:%Y-%m-%d %H:%M:%S} UTC; restart "
                "dcgm-exporter and the DCGM engine that it reads; where its interval is longer than that, start "
                "it with `-c 1000`"
            )

    def _capability(self, row: _Row, wanted: Field, served: set[str]) -> Capability:
        if wanted.name in row.values:
            return Capability(NAME)
        if row.facts.split and wanted.slice:
            return Capability(None, "in MIG mode each instance has its own")
        if row.facts.mig and not wanted.slice:
            return Capability(None, "the board has it, not its instances")
        if self.yielding and wanted.profiles:
            return Capability(None, self.yielding)
        if wanted.name in served:
            return Capability(None, f"{self.url} serves it for other GPUs, but has no value for this one")
        early = ", or the exporter started less than an interval ago" if wanted.profiles else ""
        return Capability(
            None, f"{self.url} does not serve it: no line in its counters file, or no value in DCGM{early}"
        )


def _ordinal(text: str) -> tuple[int, str]:
    return (int(text) if text.isdecimal() and len(text) < 10 else 10**10, text)


def _board_rows(index: int, parts: Iterable[_Series]) -> tuple[_Row, ...]:
    """One board's rows: itself, or in MIG mode also its instances.

    The exporter gives instances in place of their board, each with all that is the board's.
    """
    ordered = sorted(parts, key=lambda part: _ordinal(part.labels.mig) if part.labels.mig else (-1, ""))
    instances = [part for part in ordered if part.labels.mig]
    first = ordered[0].labels
    slices = slices_of(first.model)

    def facts(labels: _Labels, taken: int, profile: str = "", *, split: bool = False) -> GpuFacts:
        return GpuFacts(
            index=index,
            uuid=labels.uuid,
            mig="" if split else labels.mig,
            model=labels.model,
            pci_bus_id=labels.pci_bus_id,
            driver=labels.driver,
            profile=profile,
            share_ratio=max(0, min(slices, taken)) / slices,
            split=split,
        )

    def values(part: _Series, *, slice_only: bool = False) -> dict[str, float]:
        return {
            name: value for name, (_, value) in part.values.items() if not slice_only or _FIELDS[name].slice
        }

    if not instances:
        return (_Row(facts(first, slices), values(ordered[0]), ordered[0].holder),)
    board: dict[str, float] = {}
    for part in reversed(ordered):
        board |= {name: value for name, value in values(part).items() if not _FIELDS[name].slice}
    rows: list[_Row] = []
    free = slices
    for part in instances:
        named = _PROFILE.search(part.labels.profile)
        size, profile = (int(named[1]), named[0]) if named else (1, part.labels.profile)
        rows.append(_Row(facts(part.labels, size, profile), values(part, slice_only=True), part.holder))
        free -= size
    return (_Row(facts(first, free, split=True), board, ""), *rows)
