"""Which hours a report is of: weeks and days of somebody's calendar, as unix seconds."""

from __future__ import annotations

import os
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from pathlib import Path

from gpuwhy.report.weekly.history import AskedError, ReportError

HOUR_S = 3600
# What ends now is read up to the last full hour, once it is recorded: a slow source is two minutes behind.
SETTLED_S = 180
MOST_DAYS = 92
FORMS = "last-week, this-week, today, yesterday, 7d (any number of days), 2026-W48, or 2026-11-23..2026-11-30 (up to the second, without it)"


@dataclass(frozen=True, slots=True)
class Span:
    """Full hours from ``start_unix`` on, in a time zone; the first starts as an hour does there."""

    start_unix: int
    hours: int
    zone: tzinfo

    @property
    def end_unix(self) -> int:
        return self.start_unix + self.hours * HOUR_S

    @property
    def start(self) -> datetime:
        return datetime.fromtimestamp(self.start_unix, self.zone)

    @property
    def end(self) -> datetime:
        return datetime.fromtimestamp(self.end_unix, self.zone)

    def days(self) -> Iterator[tuple[date, int, int]]:
        """Each day of the calendar with its hours, as a slice; 23 or 25 where clocks change."""
        first = 0
        for hour in range(1, self.hours + 1):
            day = self._date(hour - 1)
            if hour == self.hours or self._date(hour) != day:
                yield day, first, hour
                first = hour

    def _date(self, hour: int) -> date:
        return datetime.fromtimestamp(self.start_unix + hour * HOUR_S, self.zone).date()

    def before(self, weeks: int) -> Span:
        """The same days of the calendar so many times earlier; by whole weeks, so that weekdays agree."""
        length = -(-self.hours // (7 * 24 + 1))  # a week has an hour more where clocks are set back
        back = timedelta(days=7 * length * weeks)
        return _span(self.start - back, self.end - back, self.zone)


@dataclass(frozen=True, slots=True)
class Period:
    """What was asked for, and the hours of it that are over. ``name`` is what people call it."""

    name: str
    span: Span
    whole: Span

    @property
    def complete(self) -> bool:
        return self.span.hours == self.whole.hours


def find_zone(name: str) -> tuple[tzinfo, str]:
    """The time zone of that name, or the host's for "", and what to call it. Raises AskedError."""
    name = name or os.environ.get("TZ", "").lstrip(":")
    try:
        if name:
            return zoneinfo.ZoneInfo(name), name
        with Path("/etc/localtime").open("rb") as file:
            target = os.path.realpath(file.name)
            key = target.partition("zoneinfo/")[2]
            return zoneinfo.ZoneInfo.from_file(file, key or None), key or "local time"
    except FileNotFoundError:
        return timezone.utc, "UTC"
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise AskedError(
            f"there is no time zone {name[:60]!r} on this host: give --timezone a name such as Europe/Berlin "
            "(package tzdata has them), or UTC"
        ) from error


def parse(text: str, zone: tzinfo, now_unix: float) -> Period:
    """The period of that name. Raises AskedError for what is none, and ReportError for what has not begun."""
    now = datetime.fromtimestamp(now_unix, zone)
    monday = _midnight(now.date() - timedelta(days=now.weekday()), zone)
    if text == "last-week":
        return _week(_days(monday, -7), now)
    if text == "this-week":
        return _week(monday, now)
    if text in {"today", "yesterday"}:
        day = now.date() - timedelta(days=text == "yesterday")
        start = _midnight(day, zone)
        return _period(f"{text}, {day}", start, _days(start, 1), now)
    if match := re.fullmatch(r"(\d{1,3})d", text):
        days = int(match[1])
        if not 1 <= days <= MOST_DAYS:
            raise AskedError(f"--period {text} is not from 1d to {MOST_DAYS}d")
        end = _full_hour(now - timedelta(seconds=SETTLED_S))
        return _period(f"the last {days} days" if days > 1 else "the last day", _days(end, -days), end, now)
    try:
        if match := re.fullmatch(r"(\d{4})-W(\d{2})", text):
            first = date.fromisocalendar(int(match[1]), int(match[2]), 1)
            return _week(_midnight(first, zone), now)
        if match := re.fullmatch(r"(\d{4}-\d\d-\d\d)\.\.(\d{4}-\d\d-\d\d)", text):
            first, end_day = (date.fromisoformat(each) for each in match.groups())
            start, end = _midnight(first, zone), _midnight(end_day, zone)
        else:
            raise AskedError(f"--period {text[:60]!r} is none of {FORMS}")
    except (ValueError, OverflowError) as error:
        raise AskedError(f"--period {text[:60]!r} names a day that is in no calendar: {error}") from error
    days = (end_day - first).days
    if not 1 <= days <= MOST_DAYS:
        raise AskedError(
            f"--period {text} has {days} days: give from 1 to {MOST_DAYS}; the second day is not in it"
        )
    if days == 7 and first.weekday() == 0:
        return _week(start, now)
    last = end_day - timedelta(days=1)
    return _period(f"{first} to {last}" if days > 1 else str(first), start, end, now)


def _week(monday: datetime, now: datetime) -> Period:
    year, week, _ = monday.isocalendar()
    return _period(f"week {year}-W{week:02d}", monday, _days(monday, 7), now)


def _period(name: str, start: datetime, end: datetime, now: datetime) -> Period:
    zone = start.tzinfo or timezone.utc
    whole = _span(start, end, zone)
    settled = _full_hour(datetime.fromtimestamp(now.timestamp() - SETTLED_S, zone))
    over = int((settled.timestamp() - whole.start_unix) // HOUR_S)
    if over < 1:
        raise ReportError(f"{name} has no full hour that is over: ask again later, or for another --period")
    return Period(name, Span(whole.start_unix, min(whole.hours, over), zone), whole)


def _span(start: datetime, end: datetime, zone: tzinfo) -> Span:
    first = int(start.timestamp())
    # A calendar whose clocks change by half an hour has weeks that end within an hour; that one counts.
    return Span(first, -(-(int(end.timestamp()) - first) // HOUR_S), zone)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone)


def _days(at: datetime, days: int) -> datetime:
    """The same time of the clock on another day."""
    return at + timedelta(days=days)


def _full_hour(at: datetime) -> datetime:
    """The full hour of that place's clock before a time."""
    into = (int(at.timestamp()) + int((at.utcoffset() or timedelta()).total_seconds())) % HOUR_S
    return datetime.fromtimestamp(int(at.timestamp()) - into, at.tzinfo)
