"""The page shows what each GPU does now, to a browser that may run and load nothing but the agent's own files."""

from __future__ import annotations

import dataclasses
import html.parser
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuwhy import __version__
from gpuwhy.exporter import Exposition, Health, Ledger, Snapshot
from gpuwhy.exporter.page import CONTENT_SECURITY_POLICY, Page, view
from gpuwhy.exporter.strips import SPAN_S, Strips
from gpuwhy.verdict import colours, vocabulary
from gpuwhy.verdict.types import Evidence

Make = Callable[..., Any]
BAD = "<img src=x onerror=alert(1)>\"'&\u202egpj\x00\x1b[2J\ud800\n</bdi>"


class Seen(html.parser.HTMLParser):
    """The tags, links and cell texts of a page."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []
        self.handlers: list[str] = []
        self.text = content.decode()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def page_of(snapshot: Snapshot | None, strips: Strips | None = None, *, now_s: float = 0.0) -> Page:
    exposition = Exposition(clock=lambda: now_s)
    if snapshot is not None:
        exposition.publish(snapshot)
    return Page(exposition, strips)


def snapshot_of(*verdicts: Any, up: bool = True, sources: tuple[str, ...] = ("nvml",)) -> Snapshot:
    ledger = Ledger()
    ledger.credit(verdicts, None, {verdict.gpu.key: verdict for verdict in verdicts})
    health = Health({verdict.gpu.key: up for verdict in verdicts}, dict.fromkeys(sources, True))
    return ledger.snapshot(health, taken_s=0.0, interval_s=5.0)


def seen(page: Page) -> Seen:
    answer = page.get("/")
    assert answer is not None
    return Seen(answer.content)


def asked(page: Page, path: str = "/api/v1/page") -> dict[str, Any]:
    answer = page.get(path)
    assert answer is not None
    assert answer.content_type == "application/json"
    found: dict[str, Any] = json.loads(answer.content)
    return found


def test_page_without_script_says_what_each_gpu_does(judge: Make, facts: Make) -> None:
    """Each GPU has a row with its verdict, how sure it is, what it means, on what it rests and what to do."""
    page = seen(page_of(snapshot_of(judge(facts(3)))))
    cells = page.cells
    assert cells[:5] == ["GPU 3", "NVIDIA H200", "ml/llama", "starving / copy", "0.80"]
    assert cells[5] == "host-device copies run while the engine waits"
    assert cells[6].startswith("Engine active 0.25 < 0.6")
    assert cells[7]
    assert __version__ in page.text
    assert {"metrics", "api/v1/status", "-/healthy", "-/ready"} <= set(page.links)


def test_slice_and_reason_are_shown(judge: Make, facts: Make) -> None:
    """A MIG slice is named as one, and an unknown verdict says its own reason."""
    made = judge(facts(0, mig="7", profile="1g.18gb"), "unknown", "mixed", reason="between two")
    page = page_of(snapshot_of(made))
    assert seen(page).cells[:4] == ["GPU 0 MIG 7", "NVIDIA H200 1g.18gb", "ml/llama", "unknown / mixed"]
    assert asked(page)["gpus"][0]["now"]["why"] == "between two"


def test_hostile_text_stays_text_and_obeys_nobody(judge: Make, facts: Make, tenancy: Make) -> None:
    """Markup is shown as text; control characters and changes of the writing direction are replaced."""
    verdict = judge(
        facts(0, uuid=BAD, model=BAD, mig=BAD, profile=BAD),
        "unknown",
        "mixed",
        reason=BAD,
        evidence=(Evidence(BAD, 1.0, BAD),),
        flags=frozenset({BAD}),
        sources={"power_watts": BAD},
        workloads=(tenancy(BAD),),
    )
    strips = Strips()
    strips.add([verdict], {})
    page = page_of(snapshot_of(verdict, sources=(BAD,)), strips)
    shown = seen(page)
    assert not {"img", "iframe"} & set(shown.tags)
    assert not shown.handlers
    assert "<img src=x onerror=alert(1)>" in shown.cells[1]
    answer = page.get("/api/v1/page")
    assert answer is not None
    drawn = json.loads(answer.content)
    texts = json.dumps({**drawn, "gpus": [{**gpu, "id": ""} for gpu in drawn["gpus"]]}, ensure_ascii=False)
    for text in (shown.text, texts):
        assert not set("\u202e\x00\x1b\ud800") & set(text)
        assert "\\u202e" not in text


def test_policy_lets_own_files_run_only(full: Snapshot) -> None:
    """Scripts, styles and requests are the agent's own; nothing is inline."""
    rules = dict(rule.strip().split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[kind] for kind in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    page = page_of(full)
    shown = seen(page)
    assert not shown.handlers
    assert "style" not in shown.tags
    assert "<script src=" in shown.text
    assert shown.text.count("<script") == 1
    for path in ("/", "/page.css", "/page.js", "/api/v1/page"):
        answer = page.get(path)
        assert answer is not None
        assert ("Content-Security-Policy", CONTENT_SECURITY_POLICY) in answer.headers


def test_every_verdict_has_its_colour_and_its_height() -> None:
    """The style has the table's colours; the script has a height for each, since colour alone says nothing to some."""
    page = page_of(None)
    style, script = page.get("/page.css"), page.get("/page.js")
    assert style is not None
    assert script is not None
    text = script.content.decode()
    heights = text[text.index("const HEIGHT = {") : text.index("};", text.index("const HEIGHT = {"))]
    for name in vocabulary.VERDICTS:
        assert f".is-{name}{{--tone:{colours.VERDICTS[name]};".encode() in style.content
        assert f"{name}: " in heights or f'"{name}": ' in heights
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text


def test_replay_is_said(judge: Make) -> None:
    """A page of recorded data says so; one of this host does not."""
    replayed, live = page_of(snapshot_of(judge(), sources=("replay",))), page_of(snapshot_of(judge()))
    assert "Replaying a recording" in seen(replayed).text
    assert "Replaying" not in seen(live).text
    assert (asked(replayed)["replaying"], asked(live)["replaying"]) == (True, False)


def test_nothing_is_claimed_without_readings(full: Snapshot) -> None:
    """Before the first interval and once readings have stopped no verdict is shown."""
    assert "No interval has been judged yet" in seen(page_of(None)).text
    early = dataclasses.replace(full, judged=0)
    assert "td" not in seen(page_of(early, now_s=100.0)).tags
    assert asked(page_of(early))["gpus"] == []
    stale = page_of(full, now_s=200.0)
    assert "Readings have stopped" in seen(stale).text
    assert "td" not in seen(stale).tags
    assert asked(stale)["stale"] is True


def test_gpu_that_does_not_answer_is_named(judge: Make) -> None:
    """A lost GPU stays on the page and is called lost."""
    page = page_of(snapshot_of(judge(cause="undetermined"), up=False))
    assert "does not answer" in seen(page).cells[3]
    assert asked(page)["gpus"][0]["up"] is False


def test_gpu_without_verdict_is_not_given_one(judge: Make, facts: Make) -> None:
    """A GPU that has just appeared is on the page, not judged yet."""
    ledger = Ledger()
    ledger.credit([judge(facts(0))], None, {})
    page = page_of(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0))
    assert seen(page).cells[3] == "not judged yet"
    assert asked(page)["gpus"][0]["now"] is None


def test_json_has_verdict_evidence_steps_workloads_and_what_is_missing(judge: Make) -> None:
    """What the script draws: everything that a person needs to act on one GPU."""
    strips = Strips()
    verdict = judge(signals={"sm_active_ratio": 0.5, "host_cpu_busy_ratio": 0.25}, owners=(4711,))
    strips.add([verdict], {})
    drawn = asked(page_of(snapshot_of(verdict), strips))
    (gpu,) = drawn["gpus"]
    now = gpu["now"]
    assert (now["verdict"], now["cause"], now["confidence"]) == ("starving", "copy", 0.8)
    assert now["evidence"] == [
        [
            "graphics_active_ratio",
            "0.25",
            "< 0.6",
            "graphics or compute engine active",
            "Engine active",
        ]
    ]
    assert now["steps"]
    assert now["workloads"][0]["title"] == "ml/llama"
    assert gpu["sources"] == ["nvml", "nvml-gpm"]
    assert "power_watts" in gpu["missing"]
    assert "sm_active_ratio" not in gpu["missing"]
    assert gpu["since"] == 1.8e9 - 5
    assert dict(drawn["host_values"])["CPU busy"] == "25 %"
    assert dict(drawn["host_values"])["CPU pressure"] == "not read"
    assert drawn["causes"][gpu["rows"][0][3]] == ["starving", "copy"]
    limits = {title: limit for (title, _), limit in zip(drawn["drawn"], gpu["limits"], strict=True) if limit}
    assert limits == {"Power": 700, "SM clock": 1980}
    assert drawn["span_s"] == SPAN_S


def test_only_what_is_new_is_sent(judge: Make) -> None:
    """With a run and a serial only later rows come; another agent's run gets all of them."""
    strips, verdict = Strips(), judge()
    strips.add([verdict], {})
    page = page_of(snapshot_of(verdict), strips)
    first = asked(page)
    assert first["whole"] is True
    again = asked(page, f"/api/v1/page/{first['run']}/{first['serial']}")
    assert (again["whole"], again["gpus"][0]["rows"]) == (False, [])
    other = asked(page, f"/api/v1/page/another/{first['serial']}")
    assert (other["whole"], len(other["gpus"][0]["rows"])) == (True, 1)


def test_rows_of_a_gpu_that_is_not_published_yet_come_later(judge: Make, facts: Make) -> None:
    """A GPU may be judged before the snapshot shows it: its rows are not passed over."""
    strips, old, new = Strips(), judge(facts(0)), judge(facts(1))
    strips.add([old, new], {})
    first = asked(page_of(snapshot_of(old), strips))
    assert first["serial"] == 0
    page = page_of(snapshot_of(old, new), strips)
    both = asked(page, f"/api/v1/page/{first['run']}/{first['serial']}")
    assert [len(gpu["rows"]) for gpu in both["gpus"]] == [1, 1]


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/page",
        "/page.html",
        "/../page.css",
        "/api/v1/page/",
        "/api/v1/page/a",
        "/api/v1/page/a/-1",
        "/api/v1/page/a/1/2",
        "/api/v1/page/a/²",
        "/api/v1/page/a/" + "9" * 30,
        "/api/v1/pages",
    ],
)
def test_other_paths_are_not_the_pages(path: str) -> None:
    """What is not exactly a path of the page has no answer from it."""
    assert page_of(None).get(path) is None


@pytest.mark.parametrize(
    ("signal", "label"),
    [
        ("graphics_active_ratio", "Engine active"),
        ("graphics_active_ratio of GPU 0", "Engine active of GPU 0"),
        ("clock_event_ratio:sw-thermal", "clock event sw-thermal"),
        ("process_tree_busiest_worker_cores", "process tree busiest worker"),
        ("pcie_receive_bytes_per_second", "pcie receive"),
        ("coverage", "coverage"),
    ],
)
def test_signals_have_words_on_a_closed_card(signal: str, label: str) -> None:
    """As they are drawn, else their name without the unit."""
    assert view._label(signal) == label
