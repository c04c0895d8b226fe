"""The runbook: a heading for each alert and each cause, and all that points there arrives."""

from __future__ import annotations

import re

import pytest

from gpuwhy import config
from gpuwhy.config import AlertOverride, RenderConfig
from gpuwhy.render import alerts, runbook
from gpuwhy.render.alerts import ALERTS, Alert, anchor
from gpuwhy.verdict import playbook, vocabulary
from gpuwhy.verdict.vocabulary import CAUSES, Cause

PARTS = ("What it means.", "Confirm in two minutes.", "What usually fixes it.", "When it is normal.")
OWN = RenderConfig(
    alerts={
        "GpuwhyStarving": AlertOverride(severity="info", threshold=0.5, window_seconds=7200),
        "GpuwhyMemoryBound": AlertOverride(enabled=False),
    }
)


def sections(options: RenderConfig | None = None) -> dict[str, str]:
    """The text under each heading of an alert or a cause."""
    parts = re.split(r"^### (.*)\n", runbook.render(options or RenderConfig()), flags=re.MULTILINE)
    names = parts[1::2]
    assert len(names) == len(set(names))
    return dict(zip(names, parts[2::2], strict=True))


def test_headings_are_alerts_and_causes() -> None:
    """Each alert and each cause has one heading, and there is no other."""
    names = [alert.name for alert in ALERTS] + [f"{cause.verdict}/{cause.name}" for cause in CAUSES]
    assert list(sections()) == names


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_all_parts(alert: Alert) -> None:
    """Its parts in order and full sentences, when it fires, what to do next, and the options that change it."""
    text = sections()[alert.name]
    found = re.findall(r"^\*\*(.*?)\*\*", text, flags=re.MULTILINE)
    assert found[:6] == ["It fires when:", *PARTS, "Next step."]
    assert found[-1] == f"Options of `render.alerts.{alert.name}`:"
    for paragraph in (alert.fires, alert.means, alert.confirm, alert.fixes, alert.normal, alert.next_step):
        assert paragraph in text
        assert paragraph.endswith((".", "`."))
        assert paragraph[0].isupper()
        assert "{" not in paragraph
        assert "  " not in paragraph
    known = {item.name for row in config.options() if row.key == "render.alerts" for item in row.items}
    assert set(re.findall(r"`(\w+): [^`]*`", text.rpartition("**Options")[2])) <= known
    assert f"{alert.severity}" in text
    assert (f"`threshold: {alert.limit:g}`" in text) if alert.threshold else ("`threshold:" not in text)
    assert (f"`window_seconds: {alert.window_s}`" in text) == bool(alert.window_s)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: "/".join(cause.key))
def test_a_cause_has_all_parts(cause: Cause) -> None:
    """Every step of its play, how to confirm it, and when it is normal; commands are ready to fill in."""
    text, play = sections()[f"{cause.verdict}/{cause.name}"], playbook.PLAY_BY_KEY[cause.key]
    assert re.findall(r"^\*\*(.*?)\*\*", text, flags=re.MULTILINE)[:4] == list(PARTS)
    for step in (*play.steps, play.confirm, play.when_normal):
        assert step.replace("{gpu}", "GPU").replace("{pid}", "PID") in text
    assert "{gpu}" not in text
    assert "{pid}" not in text


def test_alerts_and_causes_point_at_each_other() -> None:
    """An alert links the causes that its text may name, and each of those links the alert."""
    texts = sections()
    for alert in ALERTS:
        links = set(re.findall(r"\[([a-z/-]+)\]\(#", texts[alert.name]))
        verdicts = {name for name in vocabulary.VERDICTS if name == alert.verdict}
        expected = {
            f"{cause.verdict}/{cause.name}"
            for cause in CAUSES
            if cause.verdict in verdicts and (not alert.causes or cause.name in alert.causes)
        }
        assert links == expected
        assert not alert.causes or len(links) == len(alert.causes), "a cause is not in the vocabulary"
        for heading in links:
            assert f"[{alert.name}](#" in texts[heading]
    linked = {
        (heading, name) for heading, text in texts.items() for name in re.findall(r"\[(Gpuwhy\w+)\]", text)
    }
    for heading, name in linked:
        assert f"[{heading}](#" in texts[name]


def test_every_bad_verdict_has_an_alert() -> None:
    """Causes that lose time stand in some alert: what is healthy, free, without demand or undecided does not."""
    silent = {cause.key for cause in CAUSES} - {
        cause.key for alert in ALERTS for cause in runbook.causes(alert)
    }
    assert silent == {
        ("healthy", "compute"),
        ("healthy", "compute-off-tensor"),
        ("idle", "free"),
        ("idle", "no-demand"),
        ("unknown", "insufficient-evidence"),
        ("unknown", "mixed"),
    }


def test_links_arrive() -> None:
    """Each link inside the page has a heading with that anchor, as GitHub makes it."""
    text = runbook.render(RenderConfig())
    anchors = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
    for target in re.findall(r"\]\(#(.*?)\)", text):
        assert target in anchors
    assert anchor("starving/cpu-preprocess") == "starvingcpu-preprocess"
    assert anchor("GpuwhyStarving") == "gpuwhystarving"
    assert anchor("A b, c_d") == "a-b-c_d"


def test_rules_name_headings() -> None:
    """What annotations call a heading is one."""
    names = set(sections())
    for group in alerts.groups(RenderConfig()):
        for rule in group["rules"]:
            assert rule["annotations"]["runbook"] == f"RUNBOOK.md, {rule['alert']}"
            assert rule["alert"] in names
            said = re.findall(
                r"runbook heading ([a-z-]+)/\{\{ .Labels.cause \}\}", rule["annotations"]["description"]
            )
            assert all(any(name.startswith(f"{verdict}/") for name in names) for verdict in said)
            assert bool(said) == ("verdict" in rule["labels"])


def test_it_shows_the_numbers_in_effect() -> None:
    """Options change what the page says; a disabled alert keeps its heading and says so."""
    texts = sections(OWN)
    assert "`starving`, by any cause, for 1h or more of the last 2h." in texts["GpuwhyStarving"]
    assert "Severity `info`." in texts["GpuwhyStarving"]
    assert "`threshold: 0.5`" in texts["GpuwhyStarving"]
    assert "It is off until you enable it." in texts["GpuwhyMemoryBound"]
    assert "It is off until you enable it." not in texts["GpuwhyPseudoPeak"]
    assert "| [GpuwhyMemoryBound](#gpuwhymemorybound) | info, off |" in runbook.render(OWN)
