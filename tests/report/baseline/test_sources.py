"""Windows from verdicts, the store and a Prometheus: the same time gives the same baseline."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.live.programs import Prometheus, prometheus, running
from tests.store.made import facts, split, tenancy, verdict, write

from gpuwhy.config import Config, RenderConfig, ReportConfig
from gpuwhy.exporter import Exposition, Format, Health, Ledger
from gpuwhy.report.baseline import from_prometheus, from_store, history
from gpuwhy.report.baseline.compare import NO_REGRESSION, compare
from gpuwhy.report.baseline.figures import FIGURES, in_steps, value
from gpuwhy.report.baseline.from_verdicts import Collector
from gpuwhy.report.baseline.types import AskedError, BaselineError, Choice, Gpu
from gpuwhy.report.weekly.prometheus import Series
from gpuwhy.sample import Workload
from gpuwhy.verdict import Verdict
from gpuwhy.verdict.now import Now
from gpuwhy.verdict.types import TimeSplit

from . import made

START = made.START
MINUTES = 20
LLAMA, OTHER = Workload("kubernetes", "llama", "ml", "research"), Workload("slurm", "train", owner="ann")
COPY, GEMM = ("starving", "copy"), ("healthy", "compute")


def interval(index: int, at: int) -> Verdict:
    """Useful by turns; two workloads share the second GPU, and the first is read from a second source too."""
    useful = 1.0 + (at % 7) / 2
    key = GEMM if useful > 3 else COPY
    lost = {COPY: 5.0 - useful}
    time = split(5.0, key, useful=useful, lost=lost, measured=5.0, headroom=0.0)
    workloads = (tenancy(LLAMA, time),)
    if index == 1:
        half = split(2.5, key, useful=useful / 4, lost={COPY: 2.5 - useful / 4}, measured=2.5)
        rest = split(2.5, key, useful=useful * 3 / 4, lost={}, measured=2.5)
        workloads = (tenancy(LLAMA, half), tenancy(OTHER, rest))
    return verdict(
        START + 5 * (at + 1),
        gpu=facts(index, power_limit_watts=700.0, sm_clock_max_hertz=1.98e9),
        time=time,
        verdict=key[0],
        cause=key[1],
        confidence=0.8,
        start_s=5.0 * at,
        end_s=5.0 * (at + 1),
        signals={"sm_active_ratio": useful / 5, "power_watts": 100 + 100 * useful, "sm_clock_hertz": 1.5e9},
        sources={"sm_active_ratio": "nvml-gpm", "power_watts": "nvml"},
        increments={"energy_joules": 5 * (100 + 100 * useful), "sm_active_ratio": useful},
        workloads=workloads,
    )


INTERVALS = [[interval(0, at), interval(1, at)] for at in range(MINUTES * 12)]


EVERYTHING = Choice()


def collected(chosen: Choice = EVERYTHING) -> list[Gpu]:
    collector = Collector("h1", chosen)
    for verdicts in INTERVALS:
        collector.add(verdicts)
    return collector.gpus()


def figures(gpus: list[Gpu]) -> dict[str, float]:
    steps = in_steps(gpus, 60.0)
    found = {figure.name: value(steps.terms(figure)) for figure in FIGURES}
    return {name: number for name, number in found.items() if number is not None}


def test_verdicts_are_kept_as_they_were() -> None:
    """Every second, signal and joule; who held it, by which sources, and its limits."""
    gpus = collected()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert len(gpus[0].samples) == len(INTERVALS)
    first, judged = gpus[0].samples[0], INTERVALS[0][0]
    assert first.time == judged.time
    assert first.end_unix == judged.unix_end_s
    assert first.energy_joules == judged.increments["energy_joules"]
    assert first.signals == {
        **{name: judged.signals[name] for name in ("sm_active_ratio", "power_watts", "sm_clock_hertz")},
        "verdict_confidence_ratio": 0.8,
    }
    assert gpus[1].workloads == ("ml/llama", "train")
    assert gpus[0].sources == ("nvml", "nvml-gpm")
    assert gpus[0].power_limit_watts == 700.0


def test_a_workload_has_its_own_time() -> None:
    """Of a shared GPU its part; the signals stay the GPU's."""
    alone, shared = collected(Choice(workload="ml/llama"))
    assert sum(each.time.observed for each in alone.samples) == 5.0 * len(INTERVALS)
    assert sum(each.time.observed for each in shared.samples) == 2.5 * len(INTERVALS)
    assert shared.samples[0].seconds == 5.0
    assert [gpu.index for gpu in collected(Choice(workload="train"))] == [1]
    assert collected(Choice(workload="nobody")) == []
    assert [gpu.index for gpu in collected(Choice(gpus=("1",)))] == [1]


def test_young_processes_are_noted() -> None:
    """Seconds of warm-up are counted."""
    collector = Collector("h1", Choice())
    collector.add([verdict(START, flags=frozenset({"warm-up"})), verdict(START, gpu=facts(1))])
    assert [gpu.warm_up_s for gpu in collector.gpus()] == [5.0, 0.0]


def test_intervals_without_the_gpu_are_left_out() -> None:
    """An interval in which nothing was observed is no sample."""
    collector = Collector("h1", Choice())
    collector.add([verdict(START, time=TimeSplit())])
    assert collector.gpus() == []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The local history of those intervals."""
    path = tmp_path_factory.mktemp("store") / "history.db"
    write(path, (each for verdicts in INTERVALS for each in verdicts))
    return path


@pytest.mark.parametrize(
    "chosen", [Choice(), Choice(workload="llama"), Choice(gpus=("1",)), Choice(hosts=("h1",))]
)
def test_the_store_agrees(store: Path, chosen: Choice) -> None:
    """The minutes hold the same as the intervals, for all and for one workload."""
    gpus = from_store.read(store, START, START + 60 * MINUTES, chosen)
    assert [len(gpu.samples) for gpu in gpus] == [MINUTES] * len(gpus)
    own, kept = figures(collected(chosen)), figures(gpus)
    assert own.keys() == kept.keys()
    for name, number in own.items():
        assert kept[name] == pytest.approx(number, rel=2e-3, abs=2e-3), name


def test_whole_minutes_of_the_store(store: Path) -> None:
    """A window that begins or ends within a minute leaves that minute out."""
    (gpu, _) = from_store.read(store, START + 1, START + 301, Choice())
    assert [sample.end_unix - START for sample in gpu.samples] == [120, 180, 240, 300]
    assert from_store.read(store, START + 1, START + 100, Choice()) == []


def test_a_recording_that_was_played_into_the_store_says_so(tmp_path: Path) -> None:
    """Its signals are from a replay."""
    path = tmp_path / "history.db"
    write(path, (each for verdicts in INTERVALS[:24] for each in verdicts), source="replay")
    assert from_store.read(path, START, START + 120, Choice())[0].sources == ("replay",)


def test_nothing_in_the_window(store: Path) -> None:
    """The error names the file, the choice, and what to look at."""
    config = Config(report=ReportConfig(source=f"store:{store}"))
    with pytest.raises(BaselineError, match=r"history\.db has nothing of GPU 9 in that window"):
        history.read(config, (START, START + 600), Choice(gpus=("9",)), {}, lambda *_: None)


def test_no_store(tmp_path: Path) -> None:
    """The error names the file and another way."""
    config = Config(report=ReportConfig(source=f"store:{tmp_path}/none.db"))
    with pytest.raises(BaselineError, match=r"none\.db does not exist"):
        history.read(config, (START, START + 600), Choice(), {}, lambda *_: None)


COUNTED = re.compile(r"gpuwhy_\w+\{")
SCRAPE_S = 15
RESTART = 100  # intervals after which the agent began anew


def scrapes(host: str = "h1") -> Iterator[str]:
    """What an agent exported, scraped every 15 s; it is started again once."""
    for part in (INTERVALS[:RESTART], INTERVALS[RESTART:]):
        ledger, exposition, now = Ledger(), Exposition(clock=lambda: 0.0, process=CollectorRegistry()), Now()
        for each in part[0]:
            ledger.add_gpu(each.gpu)
            ledger.add_workloads(each.gpu, [LLAMA, OTHER])
        for number, verdicts in enumerate([[], *part]):
            ledger.credit(verdicts, None, {each.gpu.key: now.update(each) for each in verdicts})
            at = part[0][0].unix_end_s - 5 + 5 * number
            if at % SCRAPE_S:
                continue
            exposition.publish(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0))
            for line in exposition.scrape(Format.OPENMETRICS).decode().splitlines():
                if COUNTED.match(line):
                    series, number_text = line.rsplit(" ", 1)
                    # A start after the scrape before is seen by the next one only.
                    yield f'{series[:-1]},instance="{host}"}} {number_text} {at:.0f}\n'


def in_series() -> dict[str, list[tuple[float, str]]]:
    """The scrapes by series; of one time the last."""
    found: dict[str, dict[float, str]] = {}
    for line in scrapes():
        series, number, at = line.rsplit(" ", 2)
        found.setdefault(series, {})[float(at)] = number
    return {series: sorted(points.items()) for series, points in sorted(found.items())}


def fake(questions: list[str]) -> Callable[..., list[Series]]:
    """A server that answers range selectors by name and by times."""
    known = []
    for series, points in in_series().items():
        name, _, labels = series.partition("{")
        metric = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        known.append(({"__name__": name, **metric}, points))

    def instant(_: object, query: str, *__: Any) -> list[Series]:
        questions.append(query)
        names, length, end = re.search(r'__name__=~"([^"]*)".*\}\[(\d+)ms\] @ ([\d.]+)$', query).groups()
        answer = []
        for metric, points in known:
            inside = [(at, text) for at, text in points if float(end) - int(length) / 1e3 <= at <= float(end)]
            if inside and metric["__name__"] in names.split("|"):
                answer.append(Series(metric=metric, values=inside))
        return answer

    return instant


def read(
    monkeypatch: pytest.MonkeyPatch, chosen: Choice, start: float = START, config: Config | None = None
) -> tuple[list[Gpu], list[str]]:
    questions: list[str] = []
    monkeypatch.setattr(from_prometheus.Client, "instant", fake(questions))
    config = config or Config(report=ReportConfig(source="http://127.0.0.1:1"))
    gpus, _ = from_prometheus.read(config, start, START + 60 * MINUTES, chosen, lambda *_: None)
    return gpus, questions


# Within what one scrape and the restart cost; a workload's headlines have no causes there.
CLOSE = 0.02


def agree(own: Mapping[str, float], there: Mapping[str, float], *, of_workload: bool) -> None:
    for name, number in own.items():
        if of_workload and (name.count("/") == 2 and name.startswith("verdict")):
            continue
        assert there[name] == pytest.approx(number, rel=CLOSE, abs=CLOSE), name


@pytest.mark.parametrize("chosen", [Choice(), Choice(workload="llama"), Choice(gpus=("1",))])
def test_scrapes_agree(monkeypatch: pytest.MonkeyPatch, chosen: Choice) -> None:
    """What counters gained between scrapes is what was judged, through a restart of the agent."""
    gpus, _ = read(monkeypatch, chosen)
    own = figures(collected(chosen))
    agree(own, figures(gpus), of_workload=bool(chosen.workload))
    assert {round(sample.seconds) for gpu in gpus for sample in gpu.samples} <= {5, 10, 15}
    observed = sum(sample.time.observed for gpu in gpus for sample in gpu.samples)
    wanted = sum(sample.time.observed for gpu in collected(chosen) for sample in gpu.samples)
    assert observed == pytest.approx(wanted, rel=CLOSE)


def test_pieces_of_a_window_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is asked for in pieces is the same as in one."""
    whole, _ = read(monkeypatch, Choice())
    monkeypatch.setattr(from_prometheus, "PIECE_S", 300.0)
    pieces, questions = read(monkeypatch, Choice())
    assert pieces == whole
    assert len([each for each in questions if "observed" in each]) == MINUTES * 60 // 300


def test_what_is_known_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, driver, limits, sources and workloads come along."""
    gpus, _ = read(monkeypatch, Choice())
    assert (gpus[0].host, gpus[0].model, gpus[0].driver) == ("h1", "NVIDIA H200", "575.51.03")
    assert (gpus[0].power_limit_watts, gpus[0].sm_clock_max_hertz) == (700.0, 1.98e9)
    assert gpus[0].sources == ("nvml", "nvml-gpm")
    assert gpus[1].workloads == ("ml/llama", "train")


def test_matchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own matchers and the hosts are in every question, and what could end a string is kept in it."""
    config = Config(
        render=RenderConfig(selector='cluster="a"'),
        report=ReportConfig(source="http://127.0.0.1:1", selector='prometheus="b"'),
    )
    _, questions = read(monkeypatch, Choice(hosts=('h"1}', "h.2")), config=config)
    for question in questions:
        assert 'cluster="a",prometheus="b",instance=~"h\\"1\\\\}|h\\\\.2"}[' in question


def counters(monkeypatch: pytest.MonkeyPatch, useful: dict[float, float]) -> list[tuple[float, float]]:
    """Seconds and useful seconds of each sample, where observed seconds are twice the useful ones."""
    labels = {"instance": "h1", "gpu": "0", "uuid": "GPU-0", "mig": ""}

    def instant(_: object, query: str, *__: Any) -> list[Series]:
        if "useful" not in query:
            return []
        return [
            Series(
                metric={"__name__": f"gpuwhy_{stem}_seconds_total", **labels},
                values=[(START + at, str(scale * number)) for at, number in useful.items()],
            )
            for stem, scale in (("observed", 2), ("useful", 1))
        ]

    monkeypatch.setattr(from_prometheus.Client, "instant", instant)
    config = Config(report=ReportConfig(source="http://127.0.0.1:1"))
    gpus, _ = from_prometheus.read(config, START, START + 600, Choice(), lambda *_: None)
    return [(sample.seconds, sample.time.useful) for gpu in gpus for sample in gpu.samples]


def test_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted since a start counts once, also where the start was scraped at 0 or came between."""
    assert counters(monkeypatch, {0: 5, 15: 10, 30: 0, 45: 20}) == [(10, 5), (40, 20)]
    assert counters(monkeypatch, {0: 50, 15: 60, 30: 5}) == [(20, 10), (10, 5)]


def test_scrapes_within_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape that finds nothing new is no sample, and costs nothing."""
    assert counters(monkeypatch, {0: 5, 2: 5, 4: 5, 6: 10, 8: 10}) == [(10, 5)]


def test_a_counter_that_is_ahead_after_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """All counters of a row began anew where its observed seconds fell, also one that has grown beyond."""
    known = from_prometheus._Known(
        counters={("observed", "", ""): {0: 100.0, 15: 15.0}, ("useful", "", ""): {0: 2.0, 15: 9.0}}
    )
    config = Config(report=ReportConfig(source="http://127.0.0.1:1"))
    (sample,) = from_prometheus._Reader(config, Choice())._samples(known)
    assert (sample.seconds, sample.time.useful) == (15.0, 9.0)


def test_too_long_a_window() -> None:
    """It is refused before anything is asked."""
    config = Config(report=ReportConfig(source="http://127.0.0.1:1"))
    with pytest.raises(AskedError, match="48 hours"):
        from_prometheus.read(config, START, START + 49 * 3600, Choice(), lambda *_: None)


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be reached is named, with what to check."""
    monkeypatch.setattr("gpuwhy.report.weekly.prometheus.PATIENCE", ())
    config = Config(report=ReportConfig(source="http://127.0.0.1:1"))
    with pytest.raises(BaselineError, match=r"http://127\.0\.0\.1:1 cannot be read"):
        history.read(config, (START, START + 600), Choice(), {}, lambda *_: None)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_real_prometheus(
    tmp_path: Path, promtool: str, require_program: Callable[[str, str], str], store: Path
) -> None:
    """The same from a real one; compared with the store's window of the same time, nothing moved."""
    import subprocess

    program = require_program("prometheus", "`make test` fetches it where apt-get works, or put it on PATH")
    text = tmp_path / "samples.om"
    with text.open("w") as file:
        for series, points in in_series().items():
            file.writelines(f"{series} {number} {at:.0f}\n" for at, number in points)
        file.write("# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", text, tmp_path / "data"]
    subprocess.run(command, check=True, capture_output=True)
    server: Prometheus = prometheus(program, tmp_path)
    with running(server):
        config = Config(report=ReportConfig(source=server.url))
        for chosen in (Choice(), Choice(workload="llama", hosts=("h1",))):
            span = (START, START + 60 * MINUTES)
            found, source, _ = history.read(config, span, chosen, {}, lambda *_: None)
            assert source == server.url
            agree(figures(collected(chosen)), figures(list(found)), of_workload=bool(chosen.workload))
            minutes = from_store.read(store, *span, chosen)
            result = compare(made.baseline(*found), made.baseline(*minutes))
            assert result.outcome == NO_REGRESSION
        with pytest.raises(BaselineError, match="has nothing of host h9"):
            history.read(config, span, Choice(hosts=("h9",)), {}, lambda *_: None)
