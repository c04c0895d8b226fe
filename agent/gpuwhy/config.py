"""Every option there is, one row each, and how flags, environment and a YAML file become a frozen ``Config``.

To add an option, add a field to its section: type, bounds, default and description given there are
what validation, ``check-config`` and the docs read. To add a section, add its class to ``Config``.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta, Struct, field, inspect

DEFAULT_PATH = Path("/etc/gpuwhy/config.yaml")
ENVIRONMENT_PREFIX = "GPUWHY__"
# The YAML parser is pure Python and takes a second for this much; a host's configuration is a few KiB.
MAX_FILE_BYTES = 64 * 1024


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` holds one sentence for each thing to mend."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def _option(
    description: str,
    *,
    flag: str = "",
    ge: float | None = None,
    le: float | None = None,
    expected: str = "",
    check: Callable[[Any], object] | None = None,
    example: object = None,
) -> Meta:
    """What a field's type does not say.

    ``check`` raises ValueError for a value that is not what ``expected`` says.
    """
    return Meta(
        description=description,
        ge=ge,
        le=le,
        extra={"flag": flag, "expected": expected, "check": check, "example": example},
    )


# Kinds of workloads that a selector may name; the same as in ``catalog.WORKLOAD_KINDS``, which has more.
SELECTED_KINDS = ("slurm", "kubernetes", "container", "systemd", "process")
# Labels of gpuwhy's own series; a test holds them to ``catalog.SERIES``.
OWN_LABELS = frozenset(
    {
        "gpu", "uuid", "mig", "workload_kind", "workload", "workload_namespace", "workload_owner", "verdict", "cause",
        "unit", "reason", "sensor", "xid", "mode", "resource", "run", "profile", "model", "driver", "pci_bus_id",
        "compute_capability", "source", "signal", "version", "python",
    }
)  # fmt: skip
LIVE_SOURCES = ("auto", "dcgm", "dcgm-embedded", "nvml", "dcgm-exporter")


def _check_source(text: str) -> None:
    kind, _, paths = text.partition(":")
    if text not in LIVE_SOURCES and not (kind == "replay" and all(paths.split(","))):
        raise ValueError(text)


def _check_dcgm_address(text: str) -> None:
    if text and not text.startswith("/") and not all(_address(text)):
        raise ValueError(text)


def _check_folder(text: str) -> None:
    if text and not text.startswith("/"):
        raise ValueError(text)


def _check_root(text: str) -> None:
    if not text.startswith("/"):
        raise ValueError(text)


def _check_url(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0 or parts.username:
        raise ValueError(text)


def _check_label(text: str) -> None:
    prefix, slash, name = text.rpartition("/")
    if text and not (
        re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", name, re.ASCII)
        and (not slash or re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", prefix))
    ):
        raise ValueError(text)


def _check_matchers(text: str) -> None:
    quoted = r'"(?:[^"\\\n]|\\["\\nrt])*"'
    matcher = rf"\s*[a-zA-Z_]\w*\s*(?:=|!=|=~|!~)\s*{quoted}\s*"
    if not text:
        return
    if not re.fullmatch(rf"{matcher}(?:,{matcher})*", text, re.ASCII):
        raise ValueError(text)
    for name, operator, value in re.findall(rf"(\w+)\s*(=~|!~|!=|=)\s*({quoted})", text, re.ASCII):
        if name in OWN_LABELS:
            raise ValueError(text)
        if "~" in operator:
            try:
                re.compile(value[1:-1].replace("\\\\", "\\"))
            except re.error as error:
                raise ValueError(text) from error


def _check_host_label(text: str) -> None:
    _check_label_name(text)
    if text in {*OWN_LABELS, "job"}:
        raise ValueError(text)


def _check_alert_labels(labels: Mapping[str, str]) -> None:
    for name in labels:
        _check_label_name(name)
        if name in {*OWN_LABELS, "alertname", "severity"}:
            raise ValueError(name)


def _check_history(text: str) -> None:
    kind, colon, path = text.partition(":")
    if kind == "store":
        if colon and not path:
            raise ValueError(text)
    else:
        _check_url(text)


def _check_header(text: str) -> None:
    if not re.fullmatch(r"[!-~]*", text):
        raise ValueError(text)


def _check_label_name(text: str) -> None:
    if not re.fullmatch(r"[a-zA-Z_]\w*", text, re.ASCII) or text.startswith("__"):
        raise ValueError(text)


def _check_page(text: str) -> None:
    if text:
        _check_url(text)
        # Paths and anchors are appended, and what is in double braces would be filled in.
        if re.search(r"[\s?#{}]", text):
            raise ValueError(text)


def _check_object_name(text: str) -> None:
    if text and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text, re.ASCII):
        raise ValueError(text)


def _check_labels(labels: Mapping[str, str]) -> None:
    for name, value in labels.items():
        _check_label(name)
        if not name or (
            value and not re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", value, re.ASCII)
        ):
            raise ValueError(name)


def _check_selectors(profiles: Mapping[str, str]) -> None:
    for selector in profiles:
        kind, colon, rest = selector.partition(":")
        name = (rest if colon else kind).rpartition("/")[2]
        if not name or (colon and kind not in {*SELECTED_KINDS, "*"}):
            raise ValueError(selector)


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([\w.-]*)):(\d{1,5})", text, re.ASCII)
    if match is None or int(match[3]) > 65535:
        raise ValueError(text)
    return match[1] or match[2] or "", int(match[3])


class AgentConfig(Struct, frozen=True, kw_only=True):
    source: Annotated[
        str,
        _option(
            "where device readings come from: `auto`, the best source of this host for each GPU and signal; one "
            "source and no other (`dcgm-embedded` starts an engine inside gpuwhy: only where no other runs); or "
            "recordings (`replay:bundled` plays those that are installed with gpuwhy)",
            flag="--source",
            expected="auto, dcgm, dcgm-embedded, nvml, dcgm-exporter, replay:PATH[,PATH...] or replay:bundled",
            check=_check_source,
        ),
    ] = "auto"
    profile: Annotated[
        Literal["throughput", "latency", "unknown"],
        _option(
            "what the work on this host aims at; under `latency`, gaps between requests are expected",
            flag="--profile",
        ),
    ] = "unknown"
    interval_seconds: Annotated[
        float,
        _option(
            "length of the interval that gets one verdict; a slow source makes it longer",
            flag="--interval",
            ge=1,
            le=600,
        ),
    ] = 5.0
    replay_speed: Annotated[
        float,
        _option("how many times faster than recorded a replay runs", flag="--speed", ge=0.1, le=1000),
    ] = 1.0
    replay_loop: Annotated[bool, _option("whether a replay starts again at its end", flag="--loop")] = False
    dcgm_address: Annotated[
        str,
        _option(
            "where the DCGM host engine listens; empty: 127.0.0.1:5555, else the socket /tmp/nv-hostengine",
            expected="HOST:PORT, [IPV6]:PORT, or the path of a unix socket",
            check=_check_dcgm_address,
        ),
    ] = ""
    dcgm_bindings: Annotated[
        str,
        _option(
            "folder of DCGM's own Python bindings (`pydcgm`); empty: where DCGM 4 or 3 installs them",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = ""
    dcgm_library: Annotated[
        str,
        _option(
            "folder of `libdcgm.so`, of the same package as the bindings; empty: where they look for it",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = ""
    exporter_url: Annotated[
        str,
        _option(
            "metrics of a dcgm-exporter on this host, asked where no better source gives activity",
            expected="http://HOST:PORT/PATH or https://...",
            check=_check_url,
        ),
    ] = "http://127.0.0.1:9400/metrics"
    expected_gpus: Annotated[
        int,
        _option(
            "GPUs that this host should have, which is exported so that an alert tells when one is missing from "
            "the start; 0: not said",
            ge=0,
            le=256,
        ),
    ] = 0
    host_root: Annotated[
        str,
        _option(
            "where the host's file system is mounted, for an agent in a container: below it `proc`, "
            "`sys/fs/cgroup`, `var/log/pods` and the like are looked for first, and then at their usual places",
            expected="an absolute path, / on the host itself",
            check=_check_root,
        ),
    ] = "/"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _option("least severe message that is logged", flag="--log-level"),
    ] = "info"

    @property
    def replay_paths(self) -> tuple[str, ...]:
        """What to play, side by side: empty where the source is no replay, ("bundled",) for the installed ones."""
        kind, _, paths = self.source.partition(":")
        return tuple(paths.split(",")) if kind == "replay" else ()


class HttpConfig(Struct, frozen=True, kw_only=True):
    listen: Annotated[
        str,
        _option(
            "where metrics, status page and API are served; without a host on every address, with port 0 on any "
            "free port",
            flag="--listen",
            expected="HOST:PORT, [IPV6]:PORT or :PORT with a port up to 65535",
            check=_address,
        ),
    ] = ":9837"
    web_config_file: Annotated[
        str,
        _option(
            "file with TLS, users and headers, in the format of Prometheus's exporters (docs/http.md), read again "
            "when it changes; empty: plain HTTP for everybody",
            flag="--web-config-file",
            expected="the path of a file, or nothing",
        ),
    ] = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host ("" for every address, IPv6 without its brackets) and port."""
        return _address(self.listen)


# What lies outside is a mistake, not a card. The same bounds stand in ``verdict/cards.py``.
_Share = Annotated[float, Meta(ge=0.3, le=1)]
_ContextShare = Annotated[float, Meta(ge=0.01, le=0.6)]


class CardOverride(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers of one model that replace those of the built-in table; None = the built-in one stays."""

    dram_peak_ratio: Annotated[_Share | None, _option("DRAM activity that a good kernel reaches")] = None
    tensor_peak_ratio: Annotated[_Share | None, _option("tensor activity that a large GEMM reaches")] = None
    fp64_peak_ratio: Annotated[_Share | None, _option("FP64 activity that a good kernel reaches")] = None
    fp32_peak_ratio: Annotated[_Share | None, _option("FP32 activity that a good kernel reaches")] = None
    fp16_peak_ratio: Annotated[_Share | None, _option("FP16 activity that a good kernel reaches")] = None
    full_load_clock_ratio: Annotated[
        _Share | None, _option("share of the maximum SM clock that is held at full load")
    ] = None
    context_ratio: Annotated[
        _ContextShare | None,
        _option("share of the default power limit that is drawn with a context and no work"),
    ] = None


class CardsConfig(Struct, frozen=True, kw_only=True):
    overrides: Annotated[
        Mapping[str, CardOverride],
        _option(
            "per-card numbers in place of the built-in ones, by a part of the model's name, in any case "
            "(of several that match, a number comes from the longest that has it)",
            expected="a mapping from part of a model's name to its numbers",
            example={"H200": {"dram_peak_ratio": 0.92}},
        ),
    ] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, dict[str, float]]:
        """The overrides as plain mappings, without what they leave alone."""
        return {part: msgspec.to_builtins(override) for part, override in self.overrides.items()}


class WorkloadsConfig(Struct, frozen=True, kw_only=True):
    most: Annotated[
        int,
        _option(
            "workloads of this host that have series of their own at a time; those beyond it are counted "
            "together, as `other`",
            ge=1,
            le=2000,
        ),
    ] = 100
    label_length: Annotated[
        int,
        _option("longest value of a workload's labels, in characters; what is longer is cut", ge=16, le=512),
    ] = 128
    retention_seconds: Annotated[
        float,
        _option("how long the series of a workload that has ended stay", ge=60, le=604800),
    ] = 3600.0
    profiles: Annotated[
        Mapping[str, Literal["throughput", "latency", "unknown"]],
        _option(
            "what workloads aim at, by selector: `NAME`, `NAMESPACE/NAME` or `KIND:NAMESPACE/NAME`, where `*` "
            "stands for anything; the first that fits wins over what pods and jobs say of themselves",
            expected=f"a mapping from selector ([KIND:][NAMESPACE/]NAME, KIND one of {', '.join(SELECTED_KINDS)}) to "
            "throughput, latency or unknown",
            check=_check_selectors,
            example={"kubernetes:serving/*": "latency"},
        ),
    ] = field(default_factory=dict)
    profile_label: Annotated[
        str,
        _option(
            "pod annotation or label, and word in a Slurm job's comment, that says what a workload aims at, as in "
            "`gpuwhy/profile=latency`",
            expected="a Kubernetes label's name",
            check=_check_label,
        ),
    ] = "gpuwhy/profile"
    owner_label: Annotated[
        str,
        _option(
            "pod label that names who answers for a pod; empty, or not on the pod: its namespace",
            expected="a Kubernetes label's name",
            check=_check_label,
        ),
    ] = ""
    kubelet_socket: Annotated[
        str,
        _option(
            "the kubelet's PodResources socket, which says what GPUs pods were granted; empty: it is not asked",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    kubernetes_api: Annotated[
        bool,
        _option(
            "whether the API server is asked for this node's pods where the agent runs in a cluster; it knows "
            "controllers, labels and annotations"
        ),
    ] = True
    slurm_job_folder: Annotated[
        str,
        _option(
            "folder in which a prolog writes the jobs of each GPU, as for dcgm-exporter "
            "(DCGM_HPC_JOB_MAPPING_DIR); empty: there is none",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = ""
    slurm_scontrol: Annotated[
        str,
        _option(
            "the program that is asked once for each Slurm job what it is called, whose it is and what its comment "
            "says; empty: none is",
            expected="a program's name or path",
        ),
    ] = "scontrol"


class StoreConfig(Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, _option("whether history is kept on this host, for reports and baselines without Prometheus")
    ] = True
    path: Annotated[
        str,
        _option(
            "file that history is kept in; empty: `history.db` in systemd's STATE_DIRECTORY, else in "
            "/var/lib/gpuwhy, else (not as root) in ~/.local/state/gpuwhy. A replay keeps history only in a file "
            "that is named here",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = ""
    retention_days: Annotated[int, _option("days after which history goes", ge=1, le=3650)] = 35
    most_mebibytes: Annotated[
        int,
        _option(
            "size of the file from which on the oldest minutes go before their time, and after them the oldest hours",
            ge=4,
            le=1048576,
        ),
    ] = 256


Severity = Literal["critical", "warning", "info"]
_Threshold = Annotated[float, Meta(ge=0, le=1e9)]
_Window = Annotated[int, Meta(ge=10, le=2592000)]
_Duration = Annotated[int, Meta(ge=0, le=604800)]


class AlertOverride(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What differs of one alert; None = as it is in the table of alerts."""

    enabled: Annotated[bool | None, _option("whether the alert is rendered", expected="true or false")] = None
    severity: Annotated[
        Severity | None,
        _option("the label that Alertmanager routes by", expected="critical, warning or info"),
    ] = None
    threshold: Annotated[
        _Threshold | None, _option("the number it compares with; RUNBOOK.md says what that is")
    ] = None
    window_seconds: Annotated[_Window | None, _option("the time it looks back over, in whole seconds")] = None
    for_seconds: Annotated[
        _Duration | None, _option("how long it has to hold before it fires, in whole seconds")
    ] = None


class RenderConfig(Struct, frozen=True, kw_only=True):
    selector: Annotated[
        str,
        _option(
            "PromQL matchers that every query of gpuwhy's series is given, such as a job's or a cluster's",
            expected='matchers joined by commas, such as cluster="a",job=~"gpuwhy.*", of labels that gpuwhy itself does '
            "not use",
            check=_check_matchers,
        ),
    ] = ""
    host_label: Annotated[
        str,
        _option(
            "the label that tells hosts apart in your Prometheus, on every series of gpuwhy and on `up`",
            expected="a label's name that gpuwhy itself does not use",
            check=_check_host_label,
        ),
    ] = "instance"
    alerts: Annotated[
        Mapping[str, AlertOverride],
        _option(
            "what differs of alerts, by name",
            expected="a mapping from an alert's name to what differs",
            example={"GpuwhyStarving": {"severity": "info", "window_seconds": 7200}},
        ),
    ] = field(default_factory=dict)
    alert_labels: Annotated[
        Mapping[str, str],
        _option(
            "labels that every alert carries besides its own, such as a team",
            expected="a mapping from label to value",
            check=_check_alert_labels,
            example={"team": "ml-platform"},
        ),
    ] = field(default_factory=dict)
    runbook_url: Annotated[
        str,
        _option(
            "where you keep RUNBOOK.md; empty: alerts name the file and its heading and link to nothing",
            expected="http://... or https://..., without ? and #",
            check=_check_page,
        ),
    ] = ""
    grafana_url: Annotated[
        str,
        _option(
            "your Grafana, so that alerts link to the dashboards; empty: they do not",
            expected="http://... or https://..., without ? and #",
            check=_check_page,
        ),
    ] = ""
    price_per_gpu_hour: Annotated[
        float,
        _option(
            "what an hour of a GPU costs you; 0: no dashboard and no report speaks of money", ge=0, le=1e6
        ),
    ] = 0.0
    currency: Annotated[
        Literal["USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "KRW"], _option("the currency of the price")
    ] = "USD"
    kubernetes_namespace: Annotated[
        str,
        _option(
            "namespace of the Kubernetes objects that rules and dashboards are wrapped in; empty: they name none",
            expected="a namespace's name",
            check=_check_object_name,
        ),
    ] = ""
    kubernetes_labels: Annotated[
        Mapping[str, str],
        _option(
            "labels of those objects, by which the Prometheus operator and Grafana's sidecar select them",
            expected="a mapping from label to value",
            check=_check_labels,
            example={"release": "kube-prometheus-stack"},
        ),
    ] = field(default_factory=dict)


class ReportConfig(Struct, frozen=True, kw_only=True):
    source: Annotated[
        str,
        _option(
            "where `gpuwhy report` reads: the local history of this host, or for a fleet whatever speaks the API of "
            "Prometheus and holds the recorded series (Prometheus, Thanos, Mimir, VictoriaMetrics)",
            expected="store, store:PATH, or the address of a Prometheus (http or https)",
            check=_check_history,
        ),
    ] = "store"
    timezone: Annotated[
        str,
        _option(
            "whose days and weeks reports are of; empty: that of the host",
            expected="a name such as UTC or Europe/Berlin",
        ),
    ] = ""
    selector: Annotated[
        str,
        _option(
            "PromQL matchers that the report's queries of recorded series are given, such as for labels that Thanos "
            "or Mimir add",
            expected='matchers joined by commas, such as cluster="a"',
            check=_check_matchers,
        ),
    ] = ""
    tenant: Annotated[
        str,
        _option(
            "the tenant that is asked for, sent as X-Scope-OrgID; empty: none",
            expected="a word without blanks",
            check=_check_header,
        ),
    ] = ""
    token_file: Annotated[
        str,
        _option(
            "file of the bearer token that is sent; empty: none",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = ""
    ca_file: Annotated[
        str,
        _option(
            "certificates that https is trusted by; empty: those of the system",
            expected="an absolute path",
            check=_check_folder,
        ),
    ] = ""
    timeout_seconds: Annotated[float, _option("how long the report waits for one answer", ge=1, le=3600)] = (
        60.0
    )


class Config(Struct, frozen=True, kw_only=True):
    """All options, a field for each section."""

    agent: AgentConfig = AgentConfig()
    http: HttpConfig = HttpConfig()
    cards: CardsConfig = CardsConfig()
    workloads: WorkloadsConfig = WorkloadsConfig()
    store: StoreConfig = StoreConfig()
    render: RenderConfig = RenderConfig()
    report: ReportConfig = ReportConfig()


@dataclass(frozen=True, slots=True)
class Option:
    """One row: what an option is called, takes and means.

    ``expected`` is what it takes, in words. ``flag`` is "" where there is none. ``example`` is None
    where the default is one. ``mapping`` says that it is one from names to values; ``items`` are the rows of
    one of those, where that is a mapping too.
    """

    key: str
    default: Any
    expected: str
    description: str
    flag: str
    example: Any
    check: Callable[[Any], object] | None
    holder: type[Struct]
    items: tuple[Option, ...]
    mapping: bool
    entry: str

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.replace(".", "__").upper()


@functools.cache
def options() -> tuple[Option, ...]:
    """All rows, section by section."""
    return tuple(row for section, holder in _sections().items() for row in _rows(section, holder))


def _sections() -> dict[str, type[Struct]]:
    return {section.name: section.type for section in msgspec.structs.fields(Config)}


def _rows(prefix: str, holder: type[Struct]) -> Iterator[Option]:
    for row in msgspec.structs.fields(holder):
        kind = inspect.type_info(row.type)
        if not isinstance(kind, inspect.Metadata) or kind.extra is None:
            raise TypeError(f"{holder.__name__}.{row.name} is not described by _option()")
        yield Option(
            key=f"{prefix}.{row.name}",
            default=row.default_factory() if row.default is msgspec.NODEFAULT else row.default,
            expected=kind.extra["expected"] or _expected(kind, row.type),
            description=(kind.extra_json_schema or {})["description"],
            flag=kind.extra["flag"],
            example=kind.extra["example"],
            check=kind.extra["check"],
            holder=holder,
            items=tuple(_rows(f"{prefix}.{row.name}.*", kind.type.value_type.cls))
            if isinstance(kind.type, inspect.DictType)
            and isinstance(kind.type.value_type, inspect.StructType)
            else (),
            mapping=isinstance(kind.type, inspect.DictType),
            entry=_words(kind.type.value_type) if isinstance(kind.type, inspect.DictType) else "",
        )


def _words(kind: inspect.Type) -> str:
    """What one value of a mapping takes, "" where it is a mapping itself."""
    if isinstance(kind, inspect.LiteralType):
        *others, last = sorted(map(str, kind.values))
        return f"{', '.join(others)} or {last}"
    return ""


def _expected(kind: inspect.Type, annotation: Any) -> str:
    if isinstance(kind, inspect.Metadata):
        return _expected(kind.type, get_args(annotation)[0])
    if isinstance(kind, inspect.UnionType):
        return _expected(
            next(each for each in kind.types if not isinstance(each, inspect.NoneType)), annotation
        )
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.LiteralType):
        *others, last = get_args(annotation)  # kind.values has lost their order
        return f"{', '.join(others)} or {last}"
    if isinstance(kind, inspect.FloatType):
        return f"a number from {kind.ge:g} to {kind.le:g}"
    if isinstance(kind, inspect.IntType):
        return f"a whole number from {kind.ge} to {kind.le}"
    raise TypeError(f"no words for {kind}: give its option the argument expected")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration without a problem. ``origins`` says by option key where each value came from."""

    config: Config
    origins: Mapping[str, str]


class Row(NamedTuple):
    """An effective value as text, and where it came from."""

    key: str
    value: str
    origin: str


def describe(loaded: Loaded) -> list[Row]:
    """Each effective value and its origin, in the order of the table."""
    values = {
        option.key: getattr(getattr(loaded.config, option.section), option.name) for option in options()
    }
    return [Row(key, as_text(value), loaded.origins[key]) for key, value in values.items()]


def pip_install(library: str) -> str:
    """The command that gives this Python a library: the ``pip`` on PATH may be another's."""
    return f"{shlex.quote(sys.executable)} -m pip install {library}"


def as_text(value: object) -> str:
    """A value as it may stand in the YAML file, on one line."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode() or '""'
    if isinstance(value, float):
        return f"{value:.15g}"
    return json.dumps(msgspec.to_builtins(value))


def load(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    path: Path | None = None,
    *,
    default_path: Path = DEFAULT_PATH,
) -> Loaded:
    """Flags over environment over file over defaults; raises ConfigError with all problems found.

    ``flags`` are by option key, None = not given. A ``path`` must exist, ``default_path`` need not.
    """
    problems: list[str] = []
    given = _from_file(path, default_path, problems) | _from_environment(env, problems) | _from_flags(flags)
    sections: dict[str, dict[str, object]] = {section: {} for section in _sections()}
    for option in options():
        value = option.default
        if option.key in given:
            value = _value(option, option.key, given[option.key], problems)
        sections[option.section][option.name] = value
    if problems:
        raise ConfigError(problems)

    built: dict[str, Any] = {section: holder(**sections[section]) for section, holder in _sections().items()}
    config = Config(**built)
    origins = {
        option.key: given[option.key].origin if option.key in given else "default" for option in options()
    }
    problems += _impossible(config, origins)
    if problems:
        raise ConfigError(problems)
    return Loaded(config, origins)


def _impossible(config: Config, origins: Mapping[str, str]) -> Iterator[str]:
    """Options that are right alone and wrong together."""
    agent = config.agent
    if not agent.replay_paths:
        for name in ("replay_speed", "replay_loop"):
            value = getattr(agent, name)
            if value != getattr(AgentConfig(), name):
                yield (
                    f"agent.{name} = {as_text(value)} ({origins[f'agent.{name}']}) is for replays, and agent.source is "
                    f"{agent.source} ({origins['agent.source']}): remove it, or set agent.source to replay:PATH"
                )


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that was not checked yet, and where it stands.

    It is a text, a list, a mapping to more of these, None where nothing stands, or what a flag gave.
    """

    value: object
    origin: str


def _value(option: Option, key: str, given: _Given, problems: list[str]) -> object:
    """The checked value; after a problem, something of no use."""
    if option.items and isinstance(given.value, dict):
        return {
            name: _item(option, f"{key}.{_show(name)}", entry, problems)
            for name, entry in given.value.items()
        }
    if option.mapping and isinstance(given.value, dict):
        return {
            name: value
            for name, entry in given.value.items()
            for value in _checked(
                option, {name: entry.value}, f"{key}.{_show(name)}", entry, problems
            ).values()
        }
    value: object = _checked(option, given.value, key, given, problems)
    return value


def _checked(option: Option, raw: object, key: str, given: _Given, problems: list[str]) -> Any:
    """``raw`` as the option wants it; after a problem, nothing."""
    entry = option.mapping and isinstance(raw, dict)
    expected = option.entry if entry else option.expected
    try:
        # Text becomes what the field wants, so that file, environment and flags are read alike.
        value = getattr(msgspec.convert({option.name: raw}, option.holder, strict=False), option.name)
    except (msgspec.ValidationError, ValueError):
        problems.append(_wrong(key, given, expected, _default(option)))
        return {} if option.mapping else None
    try:
        if option.check:
            option.check(value)
    except ValueError:
        wrong = _wrong(key, given, option.expected, _default(option))
        if entry:
            wrong = f"{key} ({given.origin}) is not named as it must be: {option.key} takes {option.expected}"
        problems.append(wrong)
        return {} if option.mapping else None
    return value


def _item(option: Option, key: str, given: _Given, problems: list[str]) -> object:
    known = {item.name: item for item in option.items}
    if not isinstance(given.value, dict):
        problems.append(
            _wrong(key, given, f"a mapping with any of {', '.join(known)}", "the built-in numbers")
        )
        return None
    values = {}
    for name, entry in given.value.items():
        if name in known:
            values[name] = _value(known[name], f"{key}.{name}", entry, problems)
        else:
            problems.append(_unknown(f"{key}.{_show(name)} ({entry.origin})", name, known))
    return option.items[0].holder(**values)


def _default(option: Option) -> str:
    return "the built-in number" if option.default is None else f"the default {as_text(option.default)}"


def _wrong(key: str, given: _Given, expected: str, otherwise: str) -> str:
    what = "has no value" if given.value in (None, "") else f"is {_show(given.value, quoted=True)}"
    return f"{key} {what} ({given.origin}): set it to {expected}, or remove it for {otherwise}"


def _unknown(what: str, name: str, known: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """``meant`` maps further names that a user may have had in mind to how they are written."""
    written = {**(meant or {}), **{each: each for each in known}}
    near = difflib.get_close_matches(name[:80], written, n=1, cutoff=0.5)
    hint = f"write {written[near[0]]}" if near else f"use any of {', '.join(known)}"
    return f"{what} is not known: {hint}, or remove it"


def _show(value: object, *, quoted: bool = False) -> str:
    """A value of any origin in a few plain characters."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if not isinstance(value, str):
        return as_text(value)
    short = value if len(value) <= 60 else f"{value[:57]}..."
    return ascii(short) if quoted or not re.fullmatch(r"[!-~]+", short) else short


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    # Commands have flags of their own for some options that have none everywhere; they are named alike.
    names = {option.key: option.flag or f"--{option.name}" for option in options()}
    return {key: _Given(value, f"flag {names[key]}") for key, value in flags.items() if value is not None}


def _from_environment(env: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    by_name = {option.environment: option for option in options()}
    given = {}
    for name in sorted(name for name in env if name.startswith(ENVIRONMENT_PREFIX)):
        origin = f"environment {name}"
        option = by_name.get(name)
        if option is None:
            problems.append(_unknown(origin, name.upper(), by_name))
        elif not option.mapping:
            given[option.key] = _Given(env[name], origin)
        elif (parsed := _Document(origin, problems).parse(env[name])) is not None:
            given[option.key] = parsed
    return given


def _from_file(path: Path | None, default_path: Path, problems: list[str]) -> dict[str, _Given]:
    content = _read(path, default_path, problems)
    root = _Document(str(path or default_path), problems, is_file=True).parse(content) or _Given(None, "")
    given: dict[str, _Given] = {}
    sections = _sections()
    for section, body in _mapping("the top level", root, sections, problems):
        if section not in sections:
            meant = {option.name: f"it in section {option.section}" for option in options()}
            problems.append(_unknown(f"section {_show(section)} ({body.origin})", section, sections, meant))
        else:
            keys = {option.name: option.key for option in options() if option.section == section}
            for name, entry in _mapping(f"section {section}", body, keys, problems):
                if name in keys:
                    given[keys[name]] = entry
                else:
                    problems.append(_unknown(f"{section}.{_show(name)} ({entry.origin})", name, keys))
    return given


def _mapping(
    what: str, given: _Given, known: Iterable[str], problems: list[str]
) -> Iterable[tuple[str, _Given]]:
    if isinstance(given.value, dict):
        return given.value.items()
    if given.value is not None:
        problems.append(_wrong(what, given, f"a mapping with any of {', '.join(known)}", "the defaults"))
    return ()


def _read(path: Path | None, default_path: Path, problems: list[str]) -> str:
    """The file's text, "" where there is none that has to be there."""
    try:
        with (path or default_path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) <= MAX_FILE_BYTES:
            return content.decode()
        problem = f"is larger than {MAX_FILE_BYTES // 1024} KiB: name the YAML file with the options"
    except FileNotFoundError:
        if path is None:
            return ""
        problem = f"does not exist: create it, or leave --config away to use {default_path} or the defaults"
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problem = f"has a byte in line {line} that is not UTF-8: save it as UTF-8"
    except OSError as error:
        problem = f"cannot be read ({error.strerror}): make it a file that this user may read"
    problems.append(f"configuration file {path or default_path} {problem}")
    return ""


class _NoAliasLoader(yaml.BaseLoader):
    """Leaves scalars as text, and knows no aliases: a few nested ones can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True)
class _Document:
    """YAML text under the name it has in messages."""

    name: str
    problems: list[str]
    is_file: bool = False

    def parse(self, content: str) -> _Given | None:
        """What the text says; None, and a problem more, where it is not YAML."""
        try:
            node = yaml.compose(content, Loader=_NoAliasLoader)
            return self._tree(node) if node else _Given(None, self.name)
        except yaml.MarkedYAMLError as error:
            remedy = (
                "indent with spaces" if r"'\t'" in f"{error.problem}" else "mend it there, or quote the text"
            )
            self._reject(error.problem_mark, f"{error.problem}".removeprefix("but ")[:120], remedy)
        except yaml.reader.ReaderError as error:
            before = content[: error.position]
            mark = yaml.Mark("", 0, before.count("\n"), len(before) - before.rfind("\n") - 1, None, 0)
            self._reject(mark, error.reason, "remove the character")
        except RecursionError:
            self._reject(None, "too many levels", "make it flatter")
        except (ValueError, OverflowError):  # from PyYAML's chr() for an escape such as "\U00110000"
            self._reject(None, "an escape stands for no character", "write the character itself")
        return None

    def _reject(self, mark: yaml.Mark | None, problem: str, remedy: str) -> None:
        place = f":{mark.line + 1}:{mark.column + 1}" if self.is_file and mark else ""
        self.problems.append(f"{self.name}{place} is not the YAML that gpuwhy reads ({problem}): {remedy}")

    def _tree(self, node: yaml.Node) -> _Given:
        origin = f"{self.name}:{node.start_mark.line + 1}" if self.is_file else self.name
        if isinstance(node, yaml.SequenceNode):
            return _Given([self._tree(each) for each in node.value], origin)
        if isinstance(node, yaml.ScalarNode):
            is_null = node.style is None and node.value in {"", "~", "null"}
            return _Given(None if is_null else node.value, origin)
        entries: dict[str, _Given] = {}
        for key_node, value_node in node.value:
            key, entry = self._tree(key_node), self._tree(value_node)
            if not isinstance(key.value, str):
                self._reject(key_node.start_mark, "a key is no text", "write a name")
            elif key.value in entries:
                first = entries[key.value].origin
                self._reject(
                    key_node.start_mark, f"{_show(key.value)} stands here again, first in {first}", "keep one"
                )
            else:
                entries[key.value] = _Given(entry.value, key.origin)
        return _Given(entries, origin)
