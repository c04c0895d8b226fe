"""Weeks and days of a calendar as hours."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.report.weekly import periods
from gpuwhy.report.weekly.history import ReportError

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 30, 21, 10, tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("text", "name", "start", "hours"),
    [
        ("last-week", "week 2026-W48", "2026-11-23T00:00:00+01:00", 168),
        ("2026-W48", "week 2026-W48", "2026-11-23T00:00:00+01:00", 168),
        ("2026-11-23..2026-11-30", "week 2026-W48", "2026-11-23T00:00:00+01:00", 168),
        ("this-week", "week 2026-W49", "2026-11-30T00:00:00+01:00", 21),
        ("7d", "the last 7 days", "2026-11-23T21:00:00+01:00", 168),
        ("1d", "the last day", "2026-11-29T21:00:00+01:00", 24),
        ("2026-11-24..2026-11-25", "2026-11-24", "2026-11-24T00:00:00+01:00", 24),
        ("2026-11-24..2026-11-26", "2026-11-24 to 2026-11-25", "2026-11-24T00:00:00+01:00", 48),
        ("2026-W13", "week 2026-W13", "2026-03-23T00:00:00+01:00", 167),  # clocks go forward
        ("2026-W43", "week 2026-W43", "2026-10-19T00:00:00+02:00", 169),  # and back
        ("2025-W01", "week 2025-W01", "2024-12-30T00:00:00+01:00", 168),
    ],
)
def test_periods(text: str, name: str, start: str, hours: int) -> None:
    """Each way to name a period gives the hours of that calendar; the end is not in it."""
    period = periods.parse(text, BERLIN, NOW)
    assert (period.name, period.span.start.isoformat(), period.span.hours) == (name, start, hours)
    assert period.complete == (text != "this-week")


def test_a_period_in_progress_ends_with_the_last_full_hour_that_is_recorded() -> None:
    """Two minutes after the hour its points may not all be there yet."""
    at = datetime(2026, 11, 30, 21, 0, tzinfo=BERLIN)
    early, later = (
        periods.parse("this-week", BERLIN, (at + timedelta(minutes=minutes)).timestamp())
        for minutes in (2, 4)
    )
    assert (early.span.hours, later.span.hours, later.whole.hours) == (20, 21, 168)


@pytest.mark.parametrize("minutes", [0, 2, 4, 59])
def test_days_before_now_are_whole(minutes: int) -> None:
    """While the newest hour is not kept yet, they end an hour earlier, and begin so too."""
    at = datetime(2026, 11, 30, 21, minutes, 30, tzinfo=BERLIN)
    found = periods.parse("7d", BERLIN, at.timestamp())
    assert (found.span.hours, found.complete) == (168, True)
    assert found.span.end.hour == (20 if minutes < 3 else 21)


def test_today_and_yesterday() -> None:
    """Days of the calendar, the one not over yet."""
    now = datetime(2026, 11, 30, 21, 30, tzinfo=BERLIN).timestamp()
    today, yesterday = (periods.parse(text, BERLIN, now) for text in ("today", "yesterday"))
    assert (today.name, today.span.hours, today.complete) == ("today, 2026-11-30", 21, False)
    assert (yesterday.name, yesterday.span.hours, yesterday.complete) == ("yesterday, 2026-11-29", 24, True)
    assert yesterday.span.end == today.span.start


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tomorrow", "is none of last-week"),
        ("0d", "is not from 1d to 92d"),
        ("93d", "is not from 1d to 92d"),
        ("2026-W60", "no calendar"),
        ("2026-02-30..2026-03-02", "no calendar"),
        ("2026-11-24..2026-11-24", "has 0 days"),
        ("2026-11-24..2026-11-20", "has -4 days"),
        ("2025-01-01..2026-01-01", "has 365 days"),
        ("2026-W52", "has no full hour that is over"),
        ("9999-12-31..9999-12-32", "no calendar"),
    ],
)
def test_what_is_no_period(text: str, problem: str) -> None:
    """A mistake is named with what may be given instead."""
    with pytest.raises(ReportError, match=problem):
        periods.parse(text, BERLIN, NOW)


def test_the_days_of_a_week_in_which_clocks_change() -> None:
    """A day has 23 or 25 hours there, and the week before has its own."""
    span = periods.parse("2026-W13", BERLIN, NOW).span
    assert [last - first for _, first, last in span.days()] == [24, 24, 24, 24, 24, 24, 23]
    assert [str(day) for day, _, _ in span.days()][-1] == "2026-03-29"
    before = span.before(1)
    assert (before.start.isoformat(), before.hours) == ("2026-03-16T00:00:00+01:00", 168)
    after = periods.parse("2026-W14", BERLIN, NOW).span
    assert after.before(1) == span


def test_a_long_period_is_compared_with_whole_weeks_before_it() -> None:
    """Weekdays stay the same, and nothing overlaps."""
    span = periods.parse("10d", BERLIN, NOW).span
    assert span.before(1).start == span.start - timedelta(days=14)
    assert span.before(1).end <= span.start


def test_a_zone_of_half_hours() -> None:
    """Days begin at their own midnight, which is no full hour of UTC."""
    span = periods.parse("2026-11-24..2026-11-25", ZoneInfo("Asia/Kolkata"), NOW).span
    assert span.start_unix % 3600 == 1800
    assert span.hours == 24


def test_the_hosts_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """TZ wins; a name that no host has is told."""
    monkeypatch.setenv("TZ", ":Europe/Berlin")
    assert periods.find_zone("") == (BERLIN, "Europe/Berlin")
    assert periods.find_zone("UTC")[1] == "UTC"
    monkeypatch.delenv("TZ")
    zone, name = periods.find_zone("")
    assert name
    assert datetime.now(zone).utcoffset() == datetime.now(timezone.utc).astimezone().utcoffset()
    for wrong in ("Mars/Olympus", "../../etc/passwd", "x" * 300):
        with pytest.raises(ReportError, match="no time zone"):
            periods.find_zone(wrong)


@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "UTC"]),
    st.integers(1_300_000_000, 1_900_000_000),
    st.integers(1, 92),
)
def test_days_cover_every_hour_once(zone: str, now: int, days: int) -> None:
    """Whatever the calendar does, the days of a span are its hours in order, and weeks before do not overlap."""
    span = periods.parse(f"{days}d", ZoneInfo(zone), now).span
    slices = [(first, last) for _, first, last in span.days()]
    assert slices[0][0] == 0
    assert slices[-1][1] == span.hours
    assert all(before[1] == after[0] for before, after in pairwise(slices))
    assert abs(span.hours - 24 * days) <= 24
    assert span.before(2).end_unix <= span.before(1).start_unix + 3600
    assert span.before(1).end_unix <= span.start_unix + 3600
