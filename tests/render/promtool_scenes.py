"""Scenes of every alert: what it must fire on, when at the earliest, and what only looks like it."""

from __future__ import annotations

from .promtool import END, RESTART, Piece, Scene, Series, agent, counter, gauge, gpu, series, verdict

ROW = gpu()
NONE: dict[str, list[dict[str, str]]] = {}
HOST = {"instance": "a"}
TRAIN = {"workload_kind": "slurm", "workload": "train", "workload_namespace": "", "workload_owner": "ann"}


# At which minute each dose is reached, of a GPU that has nothing else from the start.
DOSE = (
    (2, "GpuwhyThrottledByHardware", "throttled", ("hw-thermal", "power-brake", "hw-slowdown")),
    (5, "GpuwhyTelemetryFault", "unknown", ("telemetry-fault", "no-data")),
    (6, "GpuwhyThrottled", "throttled", ("sw-thermal", "power-cap", "sync-boost", "unreported")),
    (45, "GpuwhyStarving", "starving", ("io-wait", "copy")),
    (45, "GpuwhyPseudoPeak", "pseudo-peak", ("few-sms",)),
    (45, "GpuwhyMemoryBound", "memory-bound", ("bandwidth",)),
    (45, "GpuwhyClockLocked", "throttled", ("clock-locked",)),
    (108, "GpuwhyGpuHeld", "idle", ("held",)),
)


def doses() -> Scene:
    """A MIG instance for each cause: nothing the minute before, and the one alert from there on."""
    rows = {
        (name, cause): gpu(index=str(index), mig=str(number))
        for index, (_, name, _, causes) in enumerate(DOSE)
        for number, cause in enumerate(causes)
    }
    minutes = {minute for reached, *_ in DOSE for minute in (reached - 1, reached)}
    return Scene(
        "every dose, to the minute",
        [
            *agent(),
            *(
                verdict(rows[name, cause], given, cause, Piece(110, 60))
                for _, name, given, causes in DOSE
                for cause in causes
            ),
        ],
        {
            minute: {
                name: [rows[name, cause] for cause in causes]
                for reached, name, _, causes in DOSE
                if minute >= reached
            }
            for minute in sorted(minutes)
        },
    )


def quiet(name: str, like: str, *inputs: Series, at: tuple[int, ...] = (30, 60)) -> Scene:
    """Nothing fires at these minutes; ``like`` are the alerts it looks like, with spaces between."""
    return Scene(name, [*agent(), *inputs], dict.fromkeys(at, NONE), tuple(like.split()))


def healthy(row: dict[str, str] = ROW, minutes: int = 130) -> Series:
    return verdict(row, "healthy", "compute", Piece(minutes, 60))


def events(reason: str) -> Series:
    return series("clock_event_seconds_total", counter(Piece(130, 60)), **ROW, reason=reason)


DOSES = (
    doses(),
    Scene(
        "causes add up, and the alert outlives a flip of the leading one",
        [
            *agent(),
            verdict(ROW, "starving", "copy", Piece(25, 60), Piece(40, 10)),
            verdict(ROW, "starving", "io-wait", Piece(25), Piece(40, 50)),
        ],
        {44: NONE, 45: {"GpuwhyStarving": [ROW]}, 60: {"GpuwhyStarving": [ROW]}},
    ),
    Scene(
        "two GPUs, one of them ill",
        [*agent(), healthy(), verdict(gpu(index="1"), "starving", "copy", Piece(50, 60))],
        {50: {"GpuwhyStarving": [gpu(index="1")]}},
    ),
    Scene(
        "it ends once the window is better",
        [*agent(), verdict(ROW, "throttled", "hw-thermal", Piece(3, 60), Piece(30))],
        {
            3: {"GpuwhyThrottledByHardware": [ROW]},
            11: {"GpuwhyThrottledByHardware": [ROW]},
            12: NONE,
            25: NONE,
        },
    ),
    Scene(
        "scrapes that fail in between cost nothing that was observed",
        [
            *agent(),
            verdict(ROW, "starving", "copy", Piece(20, 60), Piece(8, 60, scraped=False), Piece(30, 60)),
        ],
        {30: NONE, 44: NONE, 45: {"GpuwhyStarving": [ROW]}},
    ),
    Scene(
        "scrapes that fail do not end it",
        [
            *agent(),
            verdict(ROW, "starving", "copy", Piece(46, 60), Piece(5, 60, scraped=False), Piece(9, 60)),
        ],
        {minute: {"GpuwhyStarving": [ROW]} for minute in (45, 47, 50, 55)},
    ),
    Scene(
        "a restart of the agent makes it late, and no more",
        [*agent(), verdict(ROW, "starving", "copy", Piece(30, 60), RESTART, Piece(1), Piece(60, 60))],
        {50: NONE, 75: NONE, 76: {"GpuwhyStarving": [ROW]}},
        like=("GpuwhyStarving",),
    ),
    quiet(
        "half of the dose, then scrapes fail",
        "GpuwhyThrottledByHardware",
        # increase() makes 120 s and more of it at minute 2.
        verdict(ROW, "throttled", "hw-thermal", Piece(1, 60), Piece(5, scraped=False)),
        verdict(gpu(index="1"), "throttled", "hw-thermal", Piece(1, 60), Piece(5, scraped=False), start=6e3),
        at=(1, 2, 3, 5),
    ),
    quiet(
        "half of the dose as the series starts",
        "GpuwhyThrottledByHardware GpuwhyTelemetryFault GpuwhyStarving",
        verdict(ROW, "throttled", "hw-thermal", Piece(1, 60), Piece(20)),
        verdict(ROW, "unknown", "no-data", Piece(4, 60), Piece(20)),
        verdict(ROW, "starving", "copy", Piece(44, 60), Piece(80)),
        at=(1, 2, 4, 5, 6, 44, 45, 46, 60),
    ),
    quiet(
        "few scrapes far apart",
        "GpuwhyThrottledByHardware",
        # Samples at minutes 0 and 4 only: increase() makes 144 s of the 60 at minute 9.
        verdict(ROW, "throttled", "power-brake", Piece(3, 20, scraped=False), Piece(1, 0), END, start=5e3),
        at=(4, 5, 9),
    ),
    quiet(
        "a restart of the agent after a day of it is no dose",
        "GpuwhyStarving GpuwhyPseudoPeak GpuwhyMemoryBound GpuwhyGpuHeld GpuwhyClockLocked GpuwhyThrottled",
        *(
            verdict(ROW, name, cause, Piece(30), RESTART, Piece(100), start=80_000)
            for name, cause in (
                ("starving", "copy"),
                ("pseudo-peak", "spin-wait"),
                ("memory-bound", "bandwidth"),
                ("idle", "held"),
                ("throttled", "clock-locked"),
                ("throttled", "sw-thermal"),
            )
        ),
        at=(30, 60, 125),
    ),
    quiet(
        "under the dose for long",
        "GpuwhyStarving GpuwhyPseudoPeak GpuwhyMemoryBound GpuwhyClockLocked GpuwhyGpuHeld GpuwhyThrottled",
        verdict(ROW, "starving", "copy", Piece(130, 44)),
        verdict(gpu(index="1"), "pseudo-peak", "few-sms", Piece(130, 44)),
        verdict(gpu(index="2"), "memory-bound", "bandwidth", Piece(130, 44)),
        verdict(gpu(index="3"), "throttled", "clock-locked", Piece(130, 44)),
        verdict(gpu(index="4"), "idle", "held", Piece(130, 53)),
        verdict(gpu(index="5"), "throttled", "sw-thermal", Piece(130, 11.9)),
        at=(30, 60, 125),
    ),
    quiet(
        "a cap at full load",
        "GpuwhyThrottled GpuwhyThrottledByHardware",
        healthy(),
        events("sw-power-cap"),
        verdict(ROW, "throttled", "power-cap", Piece(130)),
    ),
    quiet(
        "a thermal bit while idle",
        "GpuwhyThrottledByHardware GpuwhyThrottled",
        verdict(ROW, "idle", "free", Piece(130, 60)),
        events("hw-thermal"),
        events("sw-thermal"),
    ),
    quiet(
        "serving at night",
        "GpuwhyGpuHeld GpuwhyStarving",
        verdict(ROW, "idle", "no-demand", Piece(130, 60)),
        at=(30, 60, 125),
    ),
    quiet(
        "a job that ended after half an hour of starving",
        "GpuwhyStarving GpuwhyGpuHeld",
        verdict(ROW, "starving", "io-wait", Piece(40, 60), Piece(90)),
        verdict(ROW, "idle", "free", Piece(40), Piece(90, 60)),
        at=(30, 60, 125),
    ),
    quiet(
        "signals that a card withholds for good",
        "GpuwhyTelemetryFault",
        verdict(ROW, "unknown", "insufficient-evidence", Piece(130, 60)),
        verdict(gpu(index="1"), "unknown", "mixed", Piece(130, 60)),
    ),
    quiet(
        "a driver update",
        "GpuwhyTelemetryFault",
        verdict(ROW, "unknown", "no-data", Piece(10), Piece(4, 60), Piece(100)),
        at=(12, 14, 15, 16, 29),
    ),
)


def member(index: str, waits: float | None, held: float = 60, minutes: int = 80, **who: str) -> list[Series]:
    """A GPU of a workload, and the seconds of each minute that it waits; None = never, and no series of it."""
    labels = {**gpu("a" if int(index) < 4 else "b", index), **TRAIN, **who}
    found = [
        series("workload_verdict_seconds_total", counter(Piece(minutes, held)), **labels, verdict="healthy"),
        series("workload_verdict_seconds_total", counter(Piece(minutes)), **labels, verdict="starving"),
    ]
    if waits is not None:
        found.append(
            series(
                "workload_lost_seconds_total",
                counter(Piece(minutes, waits)),
                **labels,
                verdict="pseudo-peak",
                cause="spin-wait",
            )
        )
    return found


def team(*waits: float | None, **who: str) -> list[Series]:
    return [each for index, seconds in enumerate(waits) for each in member(str(index), seconds, **who)]


LATE = {**gpu(index="2"), **TRAIN}
LAGGING = (
    Scene(
        "one of four is late, and never waited",
        [*agent(), *team(30, 28, None, 33)],
        {53: NONE, 54: {"GpuwhyGpuLagging": [LATE]}, 65: {"GpuwhyGpuLagging": [LATE]}},
    ),
    Scene(
        "one of eight on two hosts is late, and waits a little",
        [*agent(), *agent("b"), *team(16, 28, 16, 33, 16, 20, 5, 30)],
        {65: {"GpuwhyGpuLagging": [{**gpu("b", "6"), **TRAIN}]}},
    ),
    Scene(
        "one of two is late",
        [*agent(), *team(40, None)],
        {65: {"GpuwhyGpuLagging": [{**gpu(index="1"), **TRAIN}]}},
    ),
    quiet("all wait alike", "GpuwhyGpuLagging", *team(30, 28, 31, 33), at=(54, 65)),
    quiet("most wait for a loader", "GpuwhyGpuLagging", *team(30, 28, 15, 33), at=(54, 65)),
    quiet("waiting is a small part", "GpuwhyGpuLagging", *team(14, 14, None, 14), at=(54, 65)),
    quiet("one waits, and nobody is late", "GpuwhyGpuLagging", *team(40, None, None, None), at=(54, 65)),
    quiet("a job of one GPU", "GpuwhyGpuLagging", *team(40), at=(54, 65)),
    quiet(
        "peers of another workload do not count",
        "GpuwhyGpuLagging",
        *team(30, 28, 31, 33),
        *member("5", None, workload="serve"),
        at=(65,),
    ),
    quiet(
        "one that shares its GPU is no peer",
        "GpuwhyGpuLagging",
        *team(30, 28, 31),
        *member("3", None, held=40),
        at=(65,),
    ),
    Scene(
        "half of a workload's GPUs are late, and the other half waits",
        [*agent(), *agent("b"), *team(None, None, None, None, 27, 27, 27, 27)],
        {65: {"GpuwhyGpuLagging": [{**gpu("a", str(each)), **TRAIN} for each in range(4)]}},
    ),
    Scene(
        "one of two is late, and the other waits for less than half of the time",
        [*agent(), *team(27, None)],
        {65: {"GpuwhyGpuLagging": [{**gpu(index="1"), **TRAIN}]}},
    ),
    Scene(
        "one of two is late, in processes without a scheduler",
        [*agent(), *team(40, None, workload_kind="process")],
        {65: {"GpuwhyGpuLagging": [{**gpu(index="1"), **TRAIN, "workload_kind": "process"}]}},
    ),
    quiet(
        "processes of one name on another host are no peers",
        "GpuwhyGpuLagging",
        *agent("b"),
        *team(30, 28, 31, 33, None, None, None, workload_kind="process"),
        at=(54, 65),
    ),
    quiet(
        "what has no name is no job",
        "GpuwhyGpuLagging",
        *team(30, 28, None, 33, workload_kind="unknown"),
        at=(54, 65),
    ),
)


def recorded(level: str, stem: str, hours: list[float], **labels: str) -> Series:
    """Hourly seconds, as they are recorded."""
    return series(
        f"{level}:gpuwhy_{stem}_seconds:increase1h", " ".join(f"{hour:g}" for hour in hours), **labels
    )


def past(
    level: str,
    *days: tuple[int, float, float],
    gpus: int = 4,
    wobble: float = 0.0,
    **labels: str,
) -> list[Series]:
    """Measured, useful and idle seconds: for so many hours this efficiency, and this share of idle."""
    measured: list[float] = []
    useful: list[float] = []
    idle: list[float] = []
    for hours, efficiency, away in days:
        for hour in range(hours):
            seconds = gpus * 3600
            measured.append(seconds)
            useful.append(seconds * (1 - away) * (efficiency + (wobble if hour % 2 else -wobble)))
            idle.append(seconds * away)
    return [
        recorded(level, "measured", measured, **labels),
        recorded(level, "useful", useful, **labels),
        # All of it was measured: held, or observed, for as long.
        recorded(level, "verdict", measured, **labels, verdict="healthy")
        if level == "workload"
        else recorded(level, "observed", measured, **labels),
        recorded(level, "lost", idle, **labels, verdict="idle", cause="no-demand"),
        recorded(level, "lost", [each / 4 for each in measured], **labels, verdict="starving", cause="copy"),
    ]


def regression(name: str, fires: dict[float, list[str]], inputs: list[Series], like: str = "") -> Scene:
    """A scene of hours; ``fires`` has the alerts by hour, a minute past which they are looked at.

    At the full hour itself Prometheus 2 takes one hour more than 3 does.
    """
    labels = {
        "GpuwhyWorkloadRegression": TRAIN,
        "GpuwhyGpuRegression": ROW,
        "GpuwhyHostRegression": HOST,
    }
    expected = {
        round(60 * hour) + 1: {alert: [labels[alert]] for alert in alerts} for hour, alerts in fires.items()
    }
    return Scene(name, inputs, expected, tuple(like.split()), interval="1h")


ALL_LEVELS = "GpuwhyWorkloadRegression GpuwhyGpuRegression GpuwhyHostRegression"
BY_THE_HOUR = tuple(ALL_LEVELS.split())
WORKLOAD = "GpuwhyWorkloadRegression"
REGRESSIONS = (
    # From hour 173 on most of the six hours are worse.
    regression(
        "a workload gets worse",
        {168: [], 172: [], 173: [WORKLOAD], 178: [WORKLOAD]},
        past("workload", (170, 0.5, 0), (10, 0.31, 0), **TRAIN),
    ),
    regression(
        "a GPU gets worse",
        {168: [], 172: [], 173: ["GpuwhyGpuRegression"]},
        past("gpu", (170, 0.5, 0), (10, 0.31, 0), gpus=1, **ROW),
    ),
    regression(
        "a host gets worse",
        {168: [], 172: [], 173: ["GpuwhyHostRegression"]},
        past("instance", (170, 0.5, 0), (10, 0.31, 0), **HOST),
    ),
    regression(
        "it makes use of nothing any more",
        {178: [WORKLOAD]},
        [each for each in past("workload", (180, 0.5, 0), **TRAIN) if "useful" not in each["series"]]
        + [recorded("workload", "useful", [7200.0] * 170, **TRAIN)],
    ),
    regression(
        "GPUs that become free for half of the time",
        {172: [], 178: [], 184: []},
        [
            each
            for level, labels in (("gpu", ROW), ("instance", HOST))
            for each in (
                recorded(level, "measured", [14400.0] * 185, **labels),
                recorded(level, "observed", [14400.0] * 185, **labels),
                recorded(level, "useful", [7200.0] * 170 + [3600.0] * 15, **labels),
                recorded(level, "free", [0.0] * 170 + [7200.0] * 15, **labels),
            )
        ],
        like=ALL_LEVELS,
    ),
    regression(
        "a workload of which more is measured than before",
        {172: [], 178: [], 184: []},
        [
            recorded("workload", "verdict", [14400.0] * 185, **TRAIN, verdict="healthy"),
            recorded("workload", "measured", [8640.0] * 170 + [14400.0] * 15, **TRAIN),
            recorded("workload", "useful", [3024.0] * 170 + [5040.0] * 15, **TRAIN),
            recorded("workload", "lost", [4320.0] * 185, **TRAIN, verdict="idle", cause="no-demand"),
        ],
        like=WORKLOAD,
    ),
    regression(
        "a job that ended",
        {172: [], 175: [], 178: [], 190: []},
        [
            *past("workload", (170, 0.5, 0), **TRAIN),
            *past("gpu", (170, 0.5, 0), **ROW),
            *past("instance", (170, 0.5, 0), **HOST),
        ],
        like=ALL_LEVELS,
    ),
    regression(
        "a service at night",
        {176: [], 178: [], 180: []},
        past("workload", (170, 0.5, 0.1), (14, 0.5, 0.85), **TRAIN),
        like=WORKLOAD,
    ),
    regression(
        "hours that always differ so much",
        {176: [], 178: []},
        past("workload", (170, 0.5, 0), (10, 0.38, 0), wobble=0.08, **TRAIN),
        like=WORKLOAD,
    ),
    regression(
        "a drop that is small in points",
        {176: [], 178: []},
        past("workload", (170, 0.08, 0), (10, 0.04, 0), **TRAIN),
        like=WORKLOAD,
    ),
    regression(
        "a drop that is small against before",
        {176: [], 178: []},
        past("workload", (170, 0.5, 0), (10, 0.41, 0), **TRAIN),
        like=WORKLOAD,
    ),
    regression(
        "a job that is new",
        {8: [], 10: [], 12: []},
        past("workload", (4, 0.5, 0), (10, 0.2, 0), **TRAIN),
        like=WORKLOAD,
    ),
    regression(
        "a little measured time now",
        {176: [], 178: []},
        past("workload", (170, 0.5, 0), (10, 0.2, 0.95), **TRAIN),
        like=WORKLOAD,
    ),
    regression(
        "another workload is worse than this one",
        {178: []},
        [
            *past("workload", (180, 0.5, 0), **TRAIN),
            *past("workload", (180, 0.2, 0), **{**TRAIN, "workload": "other"}),
        ],
        like=WORKLOAD,
    ),
    regression(
        "a gap of Prometheus",
        {176: [], 178: []},
        [
            {**each, "values": each["values"] + " _x6" + f" {each['values'].split()[0]}x4"}
            for each in past("workload", (168, 0.5, 0), **TRAIN)
        ],
        like=WORKLOAD,
    ),
)


def info(values: str, host: str = "a", **labels: str) -> Series:
    return series("build_info", values, instance=host, job="gpuwhy", version="1", python="3", **labels)


def up(values: str, host: str = "a", job: str = "gpuwhy") -> Series:
    return series("up", values, instance=host, job=job)


def gpu_up(values: str, index: str = "0", mig: str = "") -> Series:
    return series("gpu_up", values, **gpu(index=index, mig=mig))


SECOND = gpu(index="1")
STATE = (
    Scene(
        "a GPU that is lost",
        [*agent(), gpu_up("1x60"), *(gpu_up(gauge((10, 1), (30, 0)), "1", mig) for mig in ("", "1", "2"))],
        {12: NONE, 13: {"GpuwhyGpuLost": [SECOND]}, 30: {"GpuwhyGpuLost": [SECOND]}},
    ),
    quiet(
        "a GPU that was moved to another host",
        "GpuwhyGpuLost",
        *agent("b"),
        gpu_up("1x60"),
        gpu_up(gauge((10, 1), (1, None)), "1"),
        series("gpu_up", gauge((11, None), (60, 1)), **{**SECOND, "instance": "b"}),
        at=(15, 30, 60),
    ),
    Scene(
        "a GPU that a restarted agent does not find",
        [*agent(), gpu_up("1x60"), gpu_up(gauge((10, 1), (1, None)), "1")],
        {12: NONE, 13: {"GpuwhyGpuLost": [SECOND]}, 60: {"GpuwhyGpuLost": [SECOND]}},
    ),
    quiet(
        "GPUs that a restarted agent has yet to find",
        "GpuwhyGpuLost GpuwhyGpusMissing",
        gpu_up(gauge((10, 1), (2, None), (60, 1))),
        series("expected_gpus", "1x60", instance="a", job="gpuwhy"),
        at=(10, 11, 12, 13, 20),
    ),
    quiet(
        "a change of MIG layout",
        "GpuwhyGpuLost GpuwhyGpusMissing",
        gpu_up("1x60"),
        gpu_up(gauge((10, 1), (1, 0), (1, None)), mig="1"),
        gpu_up(gauge((10, 1), (1, 0), (1, None)), mig="2"),
        gpu_up(gauge((12, None), (40, 1)), mig="7"),
        series("expected_gpus", "1x60", instance="a", job="gpuwhy"),
        at=(10, 11, 14, 20, 40),
    ),
    quiet(
        "GPUs with other numbers after a restart",
        "GpuwhyGpuLost",
        series("gpu_up", gauge((10, 1), (1, None)), instance="a", gpu="0", uuid="GPU-x", mig=""),
        series("gpu_up", gauge((10, None), (40, 1)), instance="a", gpu="1", uuid="GPU-x", mig=""),
        at=(14, 20, 40),
    ),
    Scene(
        "fewer GPUs than expected, from the start",
        [
            *agent(),
            gpu_up("1x60"),
            gpu_up("1x60", mig="1"),
            gpu_up("1x60", mig="2"),
            series("expected_gpus", "2x60", instance="a", job="gpuwhy"),
        ],
        {4: NONE, 5: {"GpuwhyGpusMissing": [HOST]}, 60: {"GpuwhyGpusMissing": [HOST]}},
    ),
    Scene(
        "no GPU at all where some are expected",
        [*agent(), series("expected_gpus", "2x60", instance="a", job="gpuwhy")],
        {4: NONE, 5: {"GpuwhyGpusMissing": [HOST]}},
    ),
    quiet(
        "a host that does not say how many it should have",
        "GpuwhyGpusMissing",
        gpu_up("1x60"),
        at=(10, 30),
    ),
    Scene(
        "a source that stays away",
        [
            *agent()[:2],
            series("source_degraded", gauge((10, 0), (60, 1)), **HOST),
            series("source_up", gauge((10, 1), (60, 0)), **HOST, source="dcgm"),
        ],
        {39: NONE, 40: {"GpuwhySourceDegraded": [HOST]}},
    ),
    Scene(
        "a profiler for twenty-five minutes",
        [*agent()[:2], series("source_degraded", gauge((10, 0), (25, 1), (60, 0)), **HOST)],
        {20: NONE, 34: NONE, 40: NONE, 41: NONE},
        like=("GpuwhySourceDegraded",),
    ),
    Scene(
        "an agent that does not answer",
        [
            *agent("b"),
            up(gauge((10, 1), (60, 0))),
            info(gauge((10, 1), (1, None))),
            gpu_up(gauge((10, 1), (1, None))),
        ],
        {24: NONE, 25: {"GpuwhyAgentDown": [HOST]}, 60: {"GpuwhyAgentDown": [HOST]}},
    ),
    Scene(
        "a reboot",
        [
            *agent("b"),
            up(gauge((10, 1), (13, 0), (60, 1))),
            info(gauge((10, 1), (13, None), (60, 1))),
            gpu_up(gauge((10, 1), (13, None), (60, 1))),
        ],
        {15: NONE, 22: NONE, 25: NONE, 30: NONE},
        like=("GpuwhyAgentDown", "GpuwhyAgentGone", "GpuwhyGpuLost", "GpuwhyTelemetryFault"),
    ),
    Scene(
        "another exporter of the host that does not answer",
        [*agent(), up(gauge((10, 1), (60, 0)), job="node")],
        {30: NONE, 60: NONE},
        like=("GpuwhyAgentDown",),
    ),
    Scene(
        "an agent that is scraped no more",
        [
            *agent("b"),
            up(gauge((10, 1), (1, None))),
            info(gauge((10, 1), (1, None))),
            up(gauge((20, 1), (60, 0)), job="node"),
        ],
        {24: NONE, 25: {"GpuwhyAgentGone": [HOST]}, 60: {"GpuwhyAgentGone": [HOST]}},
    ),
    Scene(
        "a new version of the agent in a new pod",
        [
            *agent("b"),
            up(gauge((10, 1), (2, None), (60, 1))),
            info(gauge((10, 1), (1, None)), pod="x"),
            series("build_info", gauge((12, None), (60, 1)), **HOST, job="gpuwhy", version="2", pod="y"),
        ],
        {12: NONE, 27: NONE, 60: NONE},
        like=("GpuwhyAgentGone", "GpuwhyAgentDown", "GpuwhyAgentAbsent"),
    ),
    Scene("no agent from the start", [up("1x60", job="node")], {9: NONE, 10: {"GpuwhyAgentAbsent": [{}]}}),
    Scene(
        "the only agent is gone",
        [up(gauge((10, 1), (60, 0))), info(gauge((10, 1), (1, None)))],
        {
            19: NONE,
            20: {"GpuwhyAgentAbsent": [{}]},
            30: {"GpuwhyAgentAbsent": [{}], "GpuwhyAgentDown": [HOST]},
        },
    ),
    Scene(
        "an agent without the label that tells hosts apart",
        [
            up("1x60"),
            info("1x60"),
            series("build_info", gauge((5, None), (60, 1)), version="1", job="gpuwhy"),
        ],
        {14: NONE, 15: {"GpuwhyHostUnknown": [{}]}},
    ),
    Scene(
        "an agent that starts every ten minutes",
        [*agent(), series("tick_duration_seconds_count", " ".join(["60+60x8"] * 14), **HOST)],
        {35: NONE, 36: {"GpuwhyAgentRestarts": [HOST]}, 60: {"GpuwhyAgentRestarts": [HOST]}},
    ),
    quiet(
        "an agent that was restarted twice",
        "GpuwhyAgentRestarts",
        series("tick_duration_seconds_count", "60+60x20 60+60x20 60+60x60", **HOST),
        at=(30, 60, 100),
    ),
    quiet("agents that all have it", "GpuwhyHostUnknown", at=(15, 60)),
    quiet("one agent is enough", "GpuwhyAgentAbsent", at=(10, 60)),
    Scene(
        "an agent without a fresh reading",
        [*agent()[:4], series("last_sample_timestamp_seconds", "0+60x10 600x50", **HOST)],
        # 120 s at minute 12 are not more than 120 s; at minute 13 it begins to hold.
        {14: NONE, 15: {"GpuwhyReadingsStale": [HOST]}, 30: {"GpuwhyReadingsStale": [HOST]}},
    ),
    Scene(
        "readings that come every minute",
        [*agent()[:4], series("last_sample_timestamp_seconds", "0 0 120 120 240 240+0x2 480+60x60", **HOST)],
        {3: NONE, 6: NONE, 20: NONE},
        like=("GpuwhyReadingsStale",),
    ),
    quiet(
        "an agent that has read nothing yet",
        "GpuwhyReadingsStale",
        at=(1, 2, 3),
    ),
)
# In steps of five minutes, over days.
LONG = (
    Scene(
        "an agent that was seen days ago and still does not answer",
        [
            *agent("b", 420, 300),
            up(gauge((100, 1), (320, 0))),
            info(gauge((100, 1), (1, None))),
        ],
        {515: {"GpuwhyAgentDown": [HOST]}, 2000: {"GpuwhyAgentDown": [HOST]}},
        interval="5m",
    ),
    Scene(
        "a host that was taken out of service is forgotten",
        [*agent("b", 420, 300), up(gauge((100, 1), (1, None))), info(gauge((100, 1), (1, None)))],
        {700: {"GpuwhyAgentGone": [HOST]}, 900: NONE},
        interval="5m",
    ),
)
# Every so often, so that it is seen to hold.
SELDOM = "361m"
HELD = (
    regression(
        "a workload gets worse and stays so",
        {168.5: [], 174.5: [], 180.5: [WORKLOAD]},
        past("workload", (170, 0.5, 0), (12, 0.3, 0), **TRAIN),
    ),
)
EVERY_MINUTE = (*DOSES, *LAGGING, *STATE)
SCENES = (*EVERY_MINUTE, *LONG, *REGRESSIONS, *HELD)
