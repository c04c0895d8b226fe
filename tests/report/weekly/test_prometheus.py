"""A Prometheus, read: what it is asked, what its answers become, and what is said when it does not answer well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from tests.source.fake_kubernetes_api import make_certificates

from gpuwhy.config import Config, RenderConfig, ReportConfig
from gpuwhy.recorded import LEVELS
from gpuwhy.report.weekly import periods, prometheus, sources
from gpuwhy.report.weekly.from_prometheus import _literal
from gpuwhy.report.weekly.history import History, ReportError
from gpuwhy.report.weekly.prometheus import Client, TooMuchError

from .fake_prometheus import Fake, serving

UTC = ZoneInfo("UTC")
SPAN = periods.parse("2026-11-24..2026-11-25", UTC, periods.parse("2026-W48", UTC, 2e9).span.end_unix).span
START = SPAN.start_unix
ROW = {"instance": "h1", "gpu": "0", "uuid": "GPU-1", "mig": ""}
WORKLOAD = {
    "workload_kind": "slurm",
    "workload": "train",
    "workload_namespace": "",
    "workload_owner": "ann",
}
OWN = {
    "gpu": ROW,
    "instance": {"instance": "h1"},
    "model": {"model": "NVIDIA H200"},
    "fleet": {},
    "workload": WORKLOAD,
    "owner": {"workload_owner": "ann"},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PATIENCE", (0.01, 0.01))


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A day of one GPU: each hour 3,600 s observed and measured, 1,800 useful and 900 lost to copies."""
    fake = Fake()
    hours = range(START + 3600, SPAN.end_unix + 1, 3600)
    seconds = {
        "observed": 3600.0,
        "measured": 3600.0,
        "useful": 1800.0,
        "headroom": 0.0,
        "free": 0.0,
        "lost": 900.0,
    }
    for level in LEVELS:
        for quantity in level.quantities:
            labels = dict(OWN[level.name])
            if "verdict" in quantity.by:
                labels["verdict"] = "starving"
            if "cause" in quantity.by:
                labels["cause"] = "copy"
            value = seconds.get(quantity.stem, 3600.0)
            fake.add(f"{level.name}:{quantity.base}:increase1h", dict.fromkeys(hours, value), **labels)
    with serving(fake):
        yield fake


def config(fake: Fake, **changes: object) -> Config:
    return Config(report=ReportConfig(**{"source": fake.url, "timeout_seconds": 5.0, **changes}))


def read(given: Config, progress: Callable[[int, int], None] = lambda done, steps: None) -> History:
    return sources.read(given, SPAN, {}, progress)


def fails(given: Config) -> str:
    with pytest.raises(ReportError) as caught:
        read(given)
    return str(caught.value)


def test_a_day(fake: Fake) -> None:
    """Each level has its hours; an hour is the value at its end, and neither a point before nor after it."""
    for _, points in fake.series:
        points[START] = points[SPAN.end_unix + 3600] = 1e6
    history = read(config(fake))
    [(group, sums)] = history.period.gpus.items()
    assert group == tuple(ROW.values())
    assert (sums["useful", "", ""], sums["lost", "starving", "copy"]) == (24 * 1800, 24 * 900)
    for level in LEVELS:
        if level.name == "gpu":
            continue
        table = history.period.table(level.name)
        assert list(table) == [tuple(OWN[level.name].values())], level.name
        [row] = table.values()
        assert list(row["useful", "", ""]) == [1800.0] * 24
        assert list(row["lost", "starving", "copy"]) == [900.0] * 24
        cause = "" if level.workload else "copy"
        assert list(row["verdict", "starving", cause]) == [3600.0] * 24
    assert history.notes == ()


def test_points_are_asked_for_at_full_hours(fake: Fake) -> None:
    """Every range begins an hour after the start, ends at the end, and steps by hours."""
    read(config(fake))
    ranges = [query for path, query, _ in fake.asked if path.endswith("query_range")]
    assert {query["step"] for query in ranges} == {"3600"}
    spans = {(int(query["start"]) - 3600, int(query["end"])) for query in ranges}
    assert spans == {(SPAN.before(week).start_unix, SPAN.before(week).end_unix) for week in range(1, 5)} | {
        (SPAN.start_unix, SPAN.end_unix)
    }


def test_progress_comes_to_its_end(fake: Fake) -> None:
    """Steps are counted up to the last one."""
    seen: list[tuple[int, int]] = []
    read(config(fake), lambda done, steps: seen.append((done, steps)))
    assert [done for done, _ in seen] == list(range(1, seen[-1][1] + 1))


@pytest.mark.parametrize("fault", ["500", "503", "429", "hang-up", "short", "truncated"])
def test_what_may_pass_is_asked_again(fake: Fake, fault: str) -> None:
    """Two bad answers in a row cost patience, not the report."""
    fake.faults = [fault, fault]
    assert read(config(fake)).period.fleet


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "answers 500 (told to fail): see its log"),
        ("503", "answers 503 (told to fail): it is not ready"),
        ("401", "answers 401 (told to fail): it wants to know who asks: set report.token_file"),
        (
            "403",
            "answers 403 (told to fail): the token in report.token_file, or the tenant, may not read this",
        ),
        (
            "404",
            "answers 404 (told to fail): there is no query API at this address: Mimir has it under /prometheus",
        ),
        ("400", "answers 400 (told to fail): a part of the query is not understood"),
        ("429", "answers 429 (told to fail): it limits how often it is asked"),
        ("tenant", "answers 401 (no org id): set report.tenant to the tenant's name"),
        (
            "redirect",
            "redirects (302) to https://login.example/oauth: give --source the address that answers itself",
        ),
        ("html", "answers with something else than the API of Prometheus"),
        ("truncated", "answers with something else than the API of Prometheus"),
        ("hang-up", "cannot be read ("),
        ("short", "cannot be read ("),
    ],
)
def test_what_does_not_pass_is_said_with_its_remedy(fake: Fake, fault: str, said: str) -> None:
    """The address, what it said, and what to do; never a secret of a redirect."""
    fake.always = fault
    message = fails(config(fake))
    assert message.startswith(f"{fake.url} {said}")
    assert "secret" not in message


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_an_answer_has_so_much_time_and_no_more(fake: Fake, fault: str) -> None:
    """Neither silence nor a drop at a time holds the report up for ever."""
    fake.always = fault
    assert "report.timeout_seconds is 1" in fails(config(fake, timeout_seconds=1.0))


def test_what_is_refused_once_is_not_asked_again(fake: Fake) -> None:
    """A wrong token stays wrong: few requests are made."""
    fake.always = "401"
    fails(config(fake))
    assert len(fake.asked) <= 2 * prometheus.PARALLEL


def test_too_much_at_once_is_asked_in_parts(fake: Fake) -> None:
    """A server that refuses long ranges is asked for shorter ones, and the hours are the same."""
    whole = read(config(fake)).period.tables
    span = periods.parse("2026-W48", UTC, SPAN.end_unix + 10 * 86400).span
    fake.most_steps = 50
    history = sources.read(config(fake), span, {}, lambda done, steps: None)
    assert sum(history.period.fleet["useful", "", ""]) == sum(whole["fleet"][()]["useful", "", ""])
    assert history.period.gpus == {}
    assert history.notes[0].startswith("Single GPUs are left out: the server will not add up so many hours")


def test_a_day_that_is_too_much_is_said(fake: Fake) -> None:
    """There is an end to smaller parts."""
    fake.most_steps = 3
    assert "answers 422 (too many samples)" in fails(config(fake))


def test_nobody_is_there() -> None:
    """A closed port is named with what to check."""
    with serving(Fake()) as gone:
        pass
    message = fails(config(gone))
    assert message.startswith(f"{gone.url} cannot be read (Failed to establish a new connection")
    assert "check the address" in message


def test_recording_rules_that_are_not_loaded() -> None:
    """Agents are scraped and nothing is recorded: the rules are what is missing."""
    fake = Fake()
    fake.add("gpuwhy_observed_seconds_total", {}, **ROW)
    with serving(fake):
        assert "load alerts/recording.rules.yaml there" in fails(config(fake))


def test_a_prometheus_that_knows_nothing() -> None:
    """Without any series the address or the tenant is wrong."""
    with serving(Fake()) as fake:
        assert "has no series of gpuwhy in that time, nor now: check the address and the tenant" in fails(
            config(fake)
        )
        assert 'has no series that match cluster="a"' in fails(config(fake, selector='cluster="a"'))


def test_hours_that_were_not_recorded_yet() -> None:
    """Recorded now and not then is no mistake: the report is empty."""
    fake = Fake()
    fake.add("fleet:gpuwhy_observed_seconds:increase1h", {SPAN.end_unix + 36000: 3600.0})
    with serving(fake):
        assert read(config(fake)).period.fleet == {}


def test_token_and_tenant_are_sent(fake: Fake, tmp_path: Path) -> None:
    """Every request carries both."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    read(config(fake, token_file=str(token), tenant="team-a"))
    for _, _, headers in fake.asked:
        assert headers["Authorization"] == "Bearer s3cret"
        assert headers["X-Scope-OrgID"] == "team-a"


def test_a_token_that_cannot_be_sent(fake: Fake, tmp_path: Path) -> None:
    """A missing, empty or broken file is named, and what is in it never is."""
    token = tmp_path / "token"
    assert "cannot be read (No such file" in fails(config(fake, token_file=str(token)))
    for content in (b"", b"s3cret\nX-Evil: 1", b"s3\xff"):
        token.write_bytes(content)
        message = fails(config(fake, token_file=str(token)))
        assert str(token) in message
        assert "s3" not in message.replace(str(token), "")


def test_a_selector_is_in_every_query(fake: Fake) -> None:
    """Labels that others add choose whose series are read."""
    series = list(fake.series)
    for metric, points in series:
        fake.series.append(({**metric, "cluster": "a"}, points))
    history = read(config(fake, selector='cluster="a"'))
    assert sum(history.period.fleet["useful", "", ""]) == 24 * 1800
    assert all('cluster="a"' in query["query"] for _, query, _ in fake.asked)


def test_series_that_labels_of_others_tell_apart_are_summed(fake: Fake) -> None:
    """Two clusters behind one address are one fleet."""
    for metric, points in list(fake.series):
        fake.series.append(({**metric, "cluster": "b"}, points))
    assert sum(read(config(fake)).period.fleet["useful", "", ""]) == 2 * 24 * 1800


def test_the_hosts_label_is_the_users() -> None:
    """What tells hosts apart is an option."""
    fake = Fake()
    at = {START + 3600: 3600.0}
    fake.add("fleet:gpuwhy_observed_seconds:increase1h", at)
    fake.add("instance:gpuwhy_observed_seconds:increase1h", at, node="n1")
    with serving(fake):
        given = Config(report=ReportConfig(source=fake.url), render=RenderConfig(host_label="node"))
        assert list(read(given).period.table("instance")) == [("n1",)]


def test_what_is_no_number_is_left_out(fake: Fake) -> None:
    """NaN, infinities and negative seconds are in no sum."""
    for metric, points in fake.series:
        if metric["__name__"] == "fleet:gpuwhy_useful_seconds:increase1h":
            hours = sorted(points)
            points[hours[0]], points[hours[1]], points[hours[2]] = float("nan"), float("inf"), -5.0
    assert list(read(config(fake)).period.fleet["useful", "", ""])[:4] == [0.0, 0.0, 0.0, 1800.0]


def test_slices_are_weighed_where_there_are_any(fake: Fake) -> None:
    """Only a fleet with MIG pays for weighing; the real thing is in test_agree.py."""
    read(config(fake))
    sums = [query["query"] for _, query, _ in fake.asked if query["query"].startswith("sum_over_time")]
    assert len(sums) == 6
    assert not any("gpu_share_ratio" in query for query in sums)
    fake.add("gpuwhy_gpu_share_ratio", {START + 3600: 0.5}, **ROW)
    fake.asked.clear()
    read(config(fake))
    sums = [query["query"] for _, query, _ in fake.asked if query["query"].startswith("sum_over_time")]
    assert all("last_over_time(gpuwhy_gpu_share_ratio{}[1h])" in query for query in sums)


def test_where_workloads_ran(fake: Fake) -> None:
    """The hosts of those that lost most are asked for by name."""
    for host in ("h2", "h1"):
        fake.add("gpuwhy_workload_useful_seconds_total", {START + 3600: 1.0}, instance=host, **WORKLOAD)
    assert read(config(fake)).places == {tuple(WORKLOAD.values()): ("h1", "h2")}
    [asked] = [query["query"] for _, query, _ in fake.asked if query["query"].startswith("group")]
    assert 'workload=~"train"' in asked


def test_what_the_server_warns_of_is_in_the_report(fake: Fake) -> None:
    """A store that is not reached makes figures too small, and says so."""
    fake.warnings = ["store s1 is not reached"]
    assert read(config(fake)).notes == ("The server warns: store s1 is not reached",)


def test_long_questions_are_posted(fake: Fake) -> None:
    """Names of many workloads do not fit into an address."""
    client = Client(config(fake).report)
    client.range(f'{{__name__="x",a="{"y" * 5000}"}}', START, START + 3600, 3600)
    assert len(fake.asked[-1][1]["query"]) > 5000


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("a.b", r"a\\.b"), ('x"y', r"x\"y"), ("a|b", r"a\\|b"), ("\\", r"\\\\"), ("a\nb", r"a\nb"), ("é", "é")],
)
def test_names_in_patterns_match_themselves_alone(text: str, pattern: str) -> None:
    assert _literal(text) == pattern


def test_tls(tmp_path: Path, require_program: Callable[[str, str], str]) -> None:
    """A certificate is believed if report.ca_file signed it, and refused with a remedy otherwise."""
    make_certificates(require_program("openssl", "install openssl"), tmp_path)
    fake = Fake()
    fake.add("fleet:gpuwhy_observed_seconds:increase1h", {START + 3600: 3600.0})
    with serving(fake, tmp_path / "server.pem"):
        assert read(config(fake, ca_file=str(tmp_path / "ca.crt"))).period.fleet
        message = fails(config(fake))
        assert "https connection is refused" in message
        assert "set report.ca_file" in message
        assert "cannot be used" in fails(config(fake, ca_file=str(tmp_path / "none.crt")))


def test_too_much_is_a_failure_of_a_report() -> None:
    assert issubclass(TooMuchError, ReportError)
