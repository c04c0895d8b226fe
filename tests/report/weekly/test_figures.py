"""What a report says, against weeks computed by hand."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from gpuwhy.report.weekly import figures, words
from gpuwhy.report.weekly.history import MEASURED, OBSERVED
from gpuwhy.report.weekly.types import Hours, Loss, Report

from .made import BRAKE, COMPUTE, COPY, FREE, HELD, HOUR, SERVE, TRAIN, UNDETERMINED, Made, a_week

WORKLOAD = ("workload_kind", "workload", "workload_namespace", "workload_owner")


@pytest.fixture(scope="module")
def report() -> Report:
    return a_week().report(price=2.0)


def near(hours: Hours, **expected: float | None) -> None:
    for name, value in expected.items():
        assert getattr(hours, name) == (None if value is None else pytest.approx(value, abs=1e-9)), name


def test_the_whole(report: Report) -> None:
    """Two training hosts, a held GPU, a free one, and ten hours of one that nobody could measure.

    Training loses 24 hours x 900 s and 36 x 2,700 s on each host: 66 GPU-hours.
    """
    near(
        report.fleet.hours,
        observed=4 * 168 + 10,
        measured=4 * 168,
        useful=2 * 168 * 3000 / 3600 - 66,
        lost=66 + 168 + 10 * 900 / 3600,
        headroom=2 * 168 * 300 / 3600,
        free=168,
        unattributed=2 * 168 * 300 / 3600 + 10 * 2700 / 3600,
        efficiency=214 / 672,
    )
    assert (report.gpus, report.hosts) == (5, 3)
    assert report.headline == (
        "214 of 682 GPU-hours (31 %) were useful, 168 (25 %) were free; idle cost 168 GPU-hours (€336), "
        "most of it prod/chat of platform on h3 (held)."
    )


def test_all_parts_add_up(report: Report) -> None:
    """At every level observed time is its parts, and its headlines; losses are their confirmed and other parts."""
    for group in (report.fleet, *report.groups):
        hours = group.hours
        parts = hours.useful + hours.lost + (hours.headroom or 0) + (hours.free or 0) + hours.unattributed
        assert hours.observed == pytest.approx(parts)
        assert hours.lost == pytest.approx(sum(loss.hours for loss in group.losses))
        if group.level != "gpu":
            assert all(
                loss.hours == pytest.approx(loss.confirmed + loss.to_investigate) for loss in group.losses
            )
            assert hours.observed == pytest.approx(sum(each.hours for each in group.verdicts))
    assert sum(day.hours.observed for day in report.days) == pytest.approx(report.fleet.hours.observed)
    for level in ("instance", "model", "gpu"):
        groups = report.of(level)
        assert sum(group.hours.lost for group in groups) == pytest.approx(report.fleet.hours.lost)


def test_confirmed_needs_a_named_cause_and_a_measured_hour(report: Report) -> None:
    """In the ten hours in which a third of h3 was not measured nothing there is confirmed."""
    found = {(loss.verdict, loss.cause): loss for loss in report.fleet.losses}
    assert found[COPY].confirmed == pytest.approx(66)
    assert found[HELD].confirmed == pytest.approx(158)
    assert found[HELD].to_investigate == pytest.approx(10)
    assert found[BRAKE].confirmed == 0
    assert found[UNDETERMINED].confirmed == 0
    [serve] = [group for group in report.of("workload") if group.labels["workload"] == "chat"]
    assert serve.losses == (Loss(*HELD, hours=168.0, confirmed=168.0, to_investigate=0.0),)


def test_a_cause_without_a_name_is_never_confirmed() -> None:
    """However well the hour was measured."""
    made = Made()
    made.put(
        range(10), lost={UNDETERMINED: 600.0, ("throttled", "unreported"): 60.0, COPY: 60.0}, verdict=COPY
    )
    confirmed = {loss.cause: loss.confirmed for loss in made.report().fleet.losses}
    assert confirmed == {"undetermined": 0, "unreported": 0, "copy": pytest.approx(10 * 60 / 3600)}


def test_no_data_does_not_make_an_hour_unmeasured() -> None:
    """An hour is judged by what there were readings for."""
    made = Made()
    made.put([0], observed=1800.0, lost={COPY: 1800.0}, verdict=COPY)
    made.put([0], observed=1800.0, measured=0.0, verdict=("unknown", "no-data"))
    [loss] = made.report().fleet.losses
    assert loss.confirmed == pytest.approx(0.5)


def test_what_to_fix_is_ranked_and_says_what_to_do(report: Report) -> None:
    """By workload where it is known, throttling by host; with hours, money, evidence and next steps."""
    ranked = [(fix.level, fix.loss.cause, round(fix.loss.hours, 3), fix.money) for fix in report.fixes]
    assert ranked == [
        ("workload", "held", 168.0, pytest.approx(336.0)),
        ("workload", "copy", 66.0, pytest.approx(132.0)),
        ("instance", "power-brake", 0.833, pytest.approx(2 * 10 * 300 / 3600)),
    ]
    copy = report.fixes[1]
    assert copy.labels == dict(zip(WORKLOAD, TRAIN, strict=True))
    assert copy.hosts == ("h1", "h2")
    assert copy.evidence == (
        "20 % of the 336 GPU-hours held, in 60 of 168 hours",
        "efficiency 64 %, 100 % of the time measured",
    )
    assert copy.steps
    assert copy.confirm
    assert not any("{" in step for step in copy.steps)
    assert report.fixes[2].evidence[-1] == "0 confirmed, 0.83 to investigate"


def test_without_workloads_hosts_are_ranked() -> None:
    """Where nobody's name is known the host is, and the report says so."""
    made = Made()
    made.put(range(168), lost={COPY: 1000.0})
    report = made.report()
    assert [(fix.level, fix.labels) for fix in report.fixes] == [("instance", {"host": "h1"})]
    assert "No workload was named in this time, so losses are ranked by host." in report.notes
    assert report.headline.endswith("starving cost 46.7 GPU-hours, most of it h1 (copy).")


def test_throttling_is_a_matter_of_hosts() -> None:
    """Whoever's work it was, the host is where to look."""
    made = Made()
    made.put(range(10), lost={BRAKE: 1000.0, COPY: 500.0}, workload=TRAIN, verdict=BRAKE)
    assert [(fix.level, fix.loss.cause) for fix in made.report().fixes] == [
        ("instance", "power-brake"),
        ("workload", "copy"),
    ]


def test_a_verdict_that_workloads_explain_in_part_is_ranked_by_host() -> None:
    """Less than half of it has a name, so names would mislead."""
    made = Made()
    made.put(range(10), lost={COPY: 1000.0}, workload=TRAIN)
    made.put(range(168), lost={COPY: 1000.0})
    assert [fix.level for fix in made.report().fixes] == ["instance"]


def test_weeks_before_and_their_median(report: Report) -> None:
    """Three of four weeks count; each of them lost 30 GPU-hours of training."""
    assert [week.available for week in report.weeks] == [True, True, True, False]
    assert report.weeks[0].start == "2026-11-16T00:00:00+00:00"
    changes = {change.name: change for change in report.changes}
    efficiency = changes["efficiency"]
    assert (efficiency.now, efficiency.before, efficiency.median, efficiency.available) == (
        pytest.approx(214 / 672),
        pytest.approx(250 / 672),
        pytest.approx(250 / 672),
        3,
    )
    starving = changes["lost to starving"]
    assert (starving.now, starving.before) == (
        pytest.approx(66 + 10 * 600 / 3600),
        pytest.approx(30 + 10 / 6),
    )
    assert changes["free"].available == 3


def test_the_median_is_of_the_weeks_that_count() -> None:
    """Weeks that were seen for less than half are no weeks."""
    made = Made()
    for week, useful in enumerate((1000.0, 1200.0, 1800.0, 3000.0)):
        made.put(range(168), week=week, useful=useful)
    made.put(range(83), week=4, useful=3600.0)
    changes = {change.name: change for change in made.report().changes}
    assert changes["useful"].median == pytest.approx(168 * 1800 / 3600)
    assert changes["useful"].available == 3


def test_hours_of_a_week_that_was_seen_in_part_are_not_compared() -> None:
    """Its shares are; the whole week before that one still gives the median of hours."""
    made = Made()
    made.put(range(168), useful=1800.0, lost={COPY: 600.0})
    made.put(range(100), week=1, useful=1800.0, lost={COPY: 600.0})
    made.put(range(168), week=2, useful=900.0, lost={COPY: 600.0})
    report = made.report()
    changes = {change.name: change for change in report.changes}
    for name in ("observed", "lost", "lost to starving"):
        assert (changes[name].before, changes[name].available) == (None, 1), name
    assert changes["useful"].median == pytest.approx(168 * 900 / 3600)
    assert (changes["efficiency"].before, changes["efficiency"].available) == (pytest.approx(0.5), 2)
    assert (
        "The week before was seen in 100 of 168 hours, this period in 168 of 168: shares are compared, hours are not."
    ) in report.notes


def test_what_is_lost_beside_the_list_is_said() -> None:
    """A list that stops says how much is left."""
    made = Made()
    for number in range(12):
        owner = ("slurm", f"job-{number}", "", "ann")
        made.put(range(10), lost={COPY: 3600.0 / (number + 1)}, workload=owner)
    report = made.report()
    assert len(report.fixes) == 10
    assert words.rest(report) == "and 1.7 GPU-hours in smaller items"


def test_without_a_week_before_nothing_is_compared() -> None:
    """The first report says so in a sentence."""
    made = Made()
    made.put(range(168), useful=1000.0)
    report = made.report()
    assert all(change.before is None and change.median is None for change in report.changes)
    assert any("nothing is compared" in note for note in report.notes)
    assert (report.worse, report.explained) == ((), ())
    assert report.of("instance")[0].before is None


def test_what_got_worse_and_since_when(report: Report) -> None:
    """Training fell from 250 to 214 of 336 hours, from Wednesday on; its owner has nothing else."""
    worse = {each.level: each for each in report.worse}
    assert set(worse) == {"workload", "instance", "model"}
    training = worse["workload"]
    assert (training.efficiency, training.past) == (pytest.approx(214 / 336), pytest.approx(250 / 336))
    assert training.hours == pytest.approx(36)
    assert training.weeks == 3
    assert training.since == "2026-11-25"


def test_worse_needs_measured_time_on_both_sides() -> None:
    """Some hours of a job prove nothing about it."""
    made = Made()
    made.put(range(168), week=1, useful=3000.0, workload=TRAIN)
    made.put(range(11), useful=100.0, workload=TRAIN)
    assert made.report().worse == ()
    made.put([11], useful=100.0, workload=TRAIN)
    assert {each.level for each in made.report().worse} == {"workload", "instance", "model"}
    made = Made()
    made.put(range(168), week=1)
    made.put(range(11), week=1, host="h2", useful=3000.0)
    made.put(range(168), host="h2", useful=100.0)
    assert all(each.level != "instance" for each in made.report().worse)


def test_a_small_drop_is_none() -> None:
    """Less than five points, or less than a tenth."""
    for before, now in ((0.30, 0.26), (0.90, 0.83)):
        made = Made()
        made.put(range(168), week=1, useful=before * HOUR)
        made.put(range(168), useful=now * HOUR)
        assert made.report().worse == ()


def test_mix_and_rate_of_the_fleet(report: Report) -> None:
    """The same work ran worse: all of it is rate, and the parts add up to the change."""
    [by_workload, *rest] = report.explained
    assert by_workload.by == "workload"
    assert by_workload.mix == pytest.approx(0)
    assert by_workload.rate == pytest.approx((214 - 250) / 672)
    assert by_workload.parts[0].labels["workload"] == "train-resnet"
    assert [each.by for each in rest] == []


def test_other_work_is_mix() -> None:
    """An efficient job gave way to an inefficient one; neither became worse."""
    made = Made()
    for week, (train, serve) in enumerate(((42, 126), (126, 42))):
        made.put(range(train), week=week, useful=3200.0, workload=TRAIN)
        made.put(range(train, train + serve), week=week, useful=800.0, workload=SERVE)
    report = made.report()
    assert report.explained[0].rate == pytest.approx(0)
    assert report.explained[0].mix == pytest.approx(-0.5 * 2400 / 3600)
    assert {each.level for each in report.worse} == {"instance", "model"}


def test_an_owner_is_explained_by_workloads() -> None:
    """Whose efficiency fell learns which work it was."""
    made = Made()
    other = ("slurm", "eval", "", "ann")
    for week, useful in enumerate((1200.0, 3000.0)):
        made.put(range(168), week=week, useful=useful, workload=TRAIN)
        made.put(range(168), week=week, gpu=1, useful=2000.0, workload=other)
    [owner] = [each for each in made.report().worse if each.level == "owner"]
    assert owner.explained is not None
    assert owner.explained.rate == pytest.approx(-0.5 * 1800 / 3600)
    assert {part.labels["workload"] for part in owner.explained.parts} == {"train-resnet", "eval"}


def test_held_and_throttled(report: Report) -> None:
    """Who holds GPUs, and which host throttled why, in hours of their own."""
    [held] = report.held
    assert (held.labels["workload"], held.hosts, held.held, held.no_demand) == ("chat", ("h3",), 168.0, 0.0)
    [throttled] = report.throttling
    assert (throttled.host, throttled.cause) == ("h3", "power-brake")
    assert (throttled.hours, throttled.lost) == (pytest.approx(10), pytest.approx(10 * 300 / 3600))


def test_days_and_heat(report: Report) -> None:
    """Each day has its 24 hours; each host an entry an hour, None only where nothing was observed."""
    assert [day.date for day in report.days] == [f"2026-11-{day}" for day in range(23, 30)]
    assert report.days[2].lost["starving"] == pytest.approx(2 * 12 * 2700 / 3600)
    rows = {row.host: row for row in report.heat}
    assert [row.host for row in report.heat] == ["h3", "h1", "h2"]
    assert len(rows["h1"].lost) == 168
    assert (rows["h1"].verdicts[8], rows["h1"].lost[8]) == ("starving", pytest.approx(0.25))
    assert (rows["h1"].verdicts[0], rows["h1"].lost[0]) == ("", 0.0)
    assert rows["h3"].lost[167] == pytest.approx(0.5)


def test_a_gpu_that_came_in_mid_week() -> None:
    """Its hours count from when it was there; the hours before belong to nobody."""
    made = Made()
    made.put(range(168), useful=HOUR)
    made.put(range(84, 168), gpu=1, useful=HOUR)
    report = made.report()
    near(report.fleet.hours, observed=252, useful=252, efficiency=1.0)
    assert report.about.hours_seen == 168
    assert [day.hours.observed for day in report.days] == [24, 24, 24, 36, 48, 48, 48]


def test_a_gap_is_nobodys_time() -> None:
    """Hours in which no agent ran are named, and are in no figure."""
    made = Made()
    made.put([*range(50), *range(60, 168)], useful=1800.0, lost={COPY: 900.0})
    report = made.report()
    assert report.about.hours_seen == 158
    near(report.fleet.hours, observed=158, unattributed=158 / 4)
    assert any("in 158 of 168 hours" in note for note in report.notes)
    assert report.heat[0].lost[55] is None


def test_slices_count_by_their_share() -> None:
    """Two slices of 3/7 and the board's rest are one GPU."""
    made = Made()
    for mig, share, useful in (("1", 3 / 7, HOUR), ("2", 3 / 7, 0.0), ("", 1 / 7, 0.0)):
        made.put(
            range(168),
            mig=mig,
            share=share,
            useful=useful,
            lost={HELD: HOUR} if mig == "2" else {},
            free=0.0 if mig else HOUR,
            verdict=COMPUTE if mig else FREE,
        )
    report = made.report()
    near(report.fleet.hours, observed=168, useful=72, lost=72, free=24)
    assert report.gpus == 1
    assert [round(group.hours.observed, 6) for group in report.of("gpu")] == [72.0, 72.0, 24.0]


@pytest.mark.parametrize(("week", "hours", "day"), [("2026-W13", 167, 23), ("2026-W43", 169, 25)])
def test_weeks_in_which_clocks_change(week: str, hours: int, day: int) -> None:
    """A week of 167 or 169 hours has them all, and its Sunday 23 or 25."""
    made = Made(week, ZoneInfo("Europe/Berlin"))
    made.put(range(hours), useful=1800.0)
    report = made.report()
    near(report.fleet.hours, observed=hours, useful=hours / 2)
    assert report.about.hours_expected == hours
    assert report.days[-1].hours.observed == day
    assert not any("hours" in note and "observed in" in note for note in report.notes)


def test_nothing_at_all() -> None:
    """An empty history gives a report that says so, and divides nothing by zero."""
    report = Made().report()
    assert report.empty
    assert report.headline == "No data for week 2026-W48."
    assert any(note.startswith("No GPU was observed between 2026-11-23") for note in report.notes)
    assert report.fleet.hours.efficiency is None
    assert len(report.days) == 7


def test_one_hour_only() -> None:
    """An hour of one GPU is a report too, which says how little it is."""
    made = Made()
    made.put([100], useful=900.0, lost={COPY: 2700.0}, workload=TRAIN)
    report = made.report()
    assert report.headline == (
        "0.25 of 1.0 GPU-hours (25 %) were useful; starving cost 0.75 GPU-hours, most of it train-resnet of ann (copy)."
    )
    assert any("in 1 of 168 hours" in note for note in report.notes)
    assert report.worse == ()


def test_a_part_of_a_week() -> None:
    """A week in progress is compared with the same hours of the week before."""
    made = Made("this-week")
    hours = made.spans[0].hours
    assert hours == 9
    made.put(range(hours), useful=1800.0)
    made.put(range(hours), week=1, useful=3600.0)
    report = made.report()
    assert any(note.startswith("The period is not over: 9 of its 168 hours") for note in report.notes)
    assert report.weeks[0].hours.observed == 9
    assert report.weeks[0].end == "2026-11-23T09:00:00+00:00"


def test_what_nobody_could_measure() -> None:
    """Without measured time there is no efficiency, and the sentence says what is missing."""
    made = Made()
    made.put(range(168), measured=0.0, lost={UNDETERMINED: 600.0})
    report = made.report()
    assert report.headline == (
        "168 GPU-hours were observed, and what was useful of them could not be measured; starving cost 28.0 GPU-hours, most of "
        "it h1 (undetermined)."
    )
    assert report.fleet.hours.efficiency is None
    assert any("`gpuwhy doctor`" in note for note in report.notes)


def test_causes_that_this_version_does_not_know() -> None:
    """A newer agent may send them; they are shown as they are, without advice."""
    made = Made()
    made.put(range(168), lost={("starved", "of-light"): 1800.0}, verdict=("starved", "of-light"))
    [fix] = made.report().fixes
    assert (fix.meaning, fix.steps) == ("", ())


def test_every_level_has_its_labels() -> None:
    """A level that is recorded and unknown here would be left out of reports."""
    from gpuwhy.recorded import LEVELS

    assert set(figures.LABELS) == {level.name for level in LEVELS}
    assert OBSERVED != MEASURED
