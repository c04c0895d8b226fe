"""The page shows what each GPU does now, to a browser that may run and load nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import re
from collections.abc import Callable
from typing import Any

from gpuwhy import __version__
from gpuwhy.exporter import Health, Ledger, Snapshot
from gpuwhy.exporter.page import CONTENT_SECURITY_POLICY, render_page
from gpuwhy.verdict.types import Evidence

Make = Callable[..., Any]


class Page(html.parser.HTMLParser):
    """The tags, links and cell texts of a page."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []
        self.titles: list[str] = []
        self.feed(content.decode())
        self.text = content.decode()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]
        self.titles += [value or "" for name, value in attrs if name == "title"]
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def page_of(*verdicts: Any, up: bool = True, sources: tuple[str, ...] = ("nvml",)) -> Page:
    ledger = Ledger()
    ledger.credit(verdicts, None, {verdict.gpu.key: verdict for verdict in verdicts})
    health = Health({verdict.gpu.key: up for verdict in verdicts}, dict.fromkeys(sources, True))
    return Page(render_page(ledger.snapshot(health, taken_s=0.0, interval_s=5.0), stale=False))


def test_page_says_what_each_gpu_does(judge: Make, facts: Make) -> None:
    """Each GPU has a row with its verdict, how sure it is, what it means and on what it rests."""
    page = page_of(judge(facts(3)))
    assert page.cells[:5] == ["3", "NVIDIA H200", "ml/llama", "starving / copy", "0.80"]
    assert page.cells[5] == "host-device copies run while the engine waits"
    assert page.cells[6].startswith("graphics_active_ratio 0.25 < 0.6")
    assert __version__ in page.text
    assert {"/metrics", "/api/v1/status", "/-/healthy", "/-/ready"} == set(page.links)


def test_slice_and_reason_are_shown(judge: Make, facts: Make) -> None:
    """A MIG slice is named as one, and an unknown verdict says its own reason."""
    page = page_of(judge(facts(0, mig="7", profile="1g.18gb"), "unknown", "mixed", reason="between two"))
    assert page.cells[:4] == ["0, MIG 7", "NVIDIA H200 1g.18gb", "ml/llama", "unknown / mixed"]
    assert page.cells[5] == "between two"


def test_hostile_text_stays_text(judge: Make, facts: Make, tenancy: Make) -> None:
    """Markup from a driver or recording is shown, never run, and a lone surrogate costs one character."""
    bad = "<script src=//x>\"'&\ud800</script>"
    verdict = judge(
        facts(0, uuid=bad, model=bad),
        "unknown",
        "mixed",
        reason=bad,
        evidence=(Evidence(bad, 1.0, bad),),
        workloads=(tenancy(bad),),
    )
    page = page_of(verdict)
    assert "script" not in page.tags
    shown = bad.replace("\ud800", "\ufffd")
    assert (page.cells[1], page.cells[2], page.cells[5], page.titles) == (
        shown,
        f"ml/{shown}",
        shown,
        [shown],
    )


def test_policy_allows_the_style_and_nothing_else(full: Snapshot) -> None:
    """The content policy admits exactly the page's own style, by its hash."""
    page = Page(render_page(full, stale=False))
    (style,) = re.findall(r"<style>(.*?)</style>", page.text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert "style=" not in page.text


def test_replay_is_said(judge: Make) -> None:
    """A page of recorded data says so; one of this host does not."""
    assert "Replaying a recording" in page_of(judge(), sources=("replay",)).text
    assert "Replaying" not in page_of(judge()).text


def test_nothing_is_claimed_without_readings(full: Snapshot) -> None:
    """Before the first interval and once readings have stopped no verdict is shown."""
    assert "No interval has been judged yet" in Page(render_page(None, stale=False)).text
    early = dataclasses.replace(full, judged=0)
    assert "td" not in Page(render_page(early, stale=False)).tags
    stale = Page(render_page(full, stale=True))
    assert "Readings have stopped" in stale.text
    assert "td" not in stale.tags


def test_gpu_that_does_not_answer_is_named(judge: Make) -> None:
    """A lost GPU stays on the page and is called lost."""
    assert "does not answer" in page_of(judge(cause="undetermined"), up=False).cells[3]


def test_gpu_without_verdict_is_not_given_one(judge: Make, facts: Make) -> None:
    """A GPU that has just appeared is on the page, not judged yet."""
    ledger = Ledger()
    ledger.credit([judge(facts(0))], None, {})
    page = Page(render_page(ledger.snapshot(Health(), taken_s=0.0, interval_s=5.0), stale=False))
    assert page.cells[3] == "not judged yet"
