"""The page in a real browser, over an agent that replays recordings: what a person sees, and by which means."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from .page import chromium as start_chromium
from .programs import free_port, get, wait_for

REMEDY = "apt-get install chromium chromium-driver"
PATIENCE_S = 60.0
CARDS = "details.gpu"
HOSTILE = "<img src=x onerror=document.title='run'>\u202egnp.exe\x07"


class Agent:
    """An agent of this tree that loops recordings, ended by its pid."""

    def __init__(self, folder: Path, source: str, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "agent.log").open("ab")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gpuwhy", "run", "--config", "/dev/null", "--source", source),
                *("--loop", "--speed", "20", "--interval", "1", "--listen", self.url.removeprefix("http://")),
                *options,
            ],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "STATE_DIRECTORY": str(folder)},
        )

    def judged(self) -> bool:
        """Whether it has judged an interval."""
        try:
            return get(f"{self.url}/-/ready").startswith(b"ready")
        except OSError:
            return False

    def end(self) -> None:
        """Kills it, as when a host goes down."""
        self.process.kill()
        self.process.wait()
        self._log.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    started: list[Agent] = []

    def start(source: str, *options: str, port: int | None = None) -> Agent:
        started.append(Agent(tmp_path, source, *options, port=port))
        assert wait_for(started[-1].judged, PATIENCE_S)
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture(scope="module")
def chromium(require_program: Callable[[str, str], str]) -> Iterator[webdriver.Chrome]:
    """One browser for all tests here."""
    started = start_chromium(require_program("chromium", REMEDY), require_program("chromedriver", REMEDY))
    yield started
    started.quit()


class View:
    """A page that is open."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        browser.get_log("browser")
        browser.get(url)

    def find(self, css: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", css))

    def texts(self, css: str) -> list[str]:
        # In one go: the page may draw a part anew in between.
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return list(self.js(script, css))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def shows(self, css: str, text: str = "") -> None:
        assert wait_for(lambda: any(text in each for each in self.texts(css)), PATIENCE_S), self.texts("body")

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def size(self, width: int, height: int) -> None:
        """The size of the view, which a window cannot have below 500."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, scheme: str) -> None:
        """What the reader prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    @property
    def complaints(self) -> list[str]:
        """What the browser's console says: refused by the policy, or failed."""
        return [str(entry["message"]) for entry in self.browser.get_log("browser")]


@pytest.fixture
def view(chromium: webdriver.Chrome) -> Iterator[Callable[[str], View]]:
    yield lambda url: View(chromium, url)
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    chromium.get("about:blank")


def test_page_updates_by_itself_and_opens_by_keyboard(agent: Any, view: Any) -> None:
    """A card for each GPU; its strip grows; Tab and Enter open its details, which stay open and focused."""
    page = view(agent("replay:bundled").url)
    page.shows(f"{CARDS} .chip", "starving")
    assert "Replaying a recording" in page.texts("#notes")[0]
    assert len(page.find(CARDS)) == len(page.find(f"{CARDS} .strip"))

    page.press(Keys.TAB)
    assert page.js("return document.activeElement.className") == "skip"
    for _ in range(8):
        page.press(Keys.TAB)
        if page.js("return document.activeElement.tagName") == "SUMMARY":
            break
    assert page.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.ENTER)
    page.shows(f"{CARDS}[open] h3", "Next steps")
    assert len(page.find(f"{CARDS}[open] .lane")) == 8
    assert page.find(f"{CARDS}[open] ol li")
    assert page.find(f"{CARDS}[open] .lane path.area")

    step = page.find(f"{CARDS}[open] ol li")[0]
    before = page.texts(f"{CARDS}[open] .since")
    assert wait_for(lambda: page.texts(f"{CARDS}[open] .since") != before, PATIENCE_S)
    assert page.js("return document.activeElement.tagName") == "SUMMARY"
    assert step.is_displayed()  # drawn once: what a reader has selected in it stays selected
    assert page.complaints == []


def test_phone_needs_no_sideways_scroll(agent: Any, view: Any) -> None:
    """At 360 pixels nothing is wider than the view, also with every GPU's details open."""
    page = view(agent("replay:bundled").url)
    page.size(360, 740)
    page.shows(f"{CARDS} .chip", "starving")
    page.js("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.shows(f"{CARDS}[open] h3", "Next steps")
    assert page.js("return document.documentElement.scrollWidth") == 360
    assert (
        page.js(
            "return [...document.querySelectorAll('.body *')].filter((each) => each.getBoundingClientRect().right > 360).length"
        )
        == 0
    )


def test_light_and_dark_follow_the_browser(agent: Any, view: Any) -> None:
    """Text stands out from its ground in both: light on dark, and dark on light."""
    page = view(agent("replay:bundled").url)
    page.shows(f"{CARDS} .chip", "starving")
    for scheme, darker in (("light", "color"), ("dark", "backgroundColor")):
        page.scheme(scheme)
        sums = {
            name: sum(
                map(int, re.findall(r"\d+", page.js(f"return getComputedStyle(document.body).{name}"))[:3])
            )
            for name in ("color", "backgroundColor")
        }
        assert abs(sums["color"] - sums["backgroundColor"]) > 400, sums
        assert min(sums, key=sums.__getitem__) == darker


def test_dead_agent_is_said_and_its_last_view_stays(agent: Any, view: Any) -> None:
    """Once the agent is gone the page says since when, and keeps what it showed."""
    running = agent("replay:bundled")
    page = view(running.url)
    page.shows(f"{CARDS} .chip", "starving")
    count = len(page.find(CARDS))
    running.end()
    page.shows("#notes .gone", "The agent has not answered since")
    assert re.search(r"since \d\d:\d\d:\d\d", page.texts("#notes .gone")[0])
    assert len(page.find(CARDS)) == count


def test_page_goes_on_when_the_agent_is_back(agent: Any, view: Any) -> None:
    """After a restart the page drops its note and the GPUs that are no more, without being loaded again."""
    running = agent("replay:bundled")
    page = view(running.url)
    page.shows(f"{CARDS} .chip", "starving")
    page.js("window.same = true")
    running.end()
    page.shows("#notes .gone", "The agent has not answered since")
    agent("replay:tests/data/recordings/gemm.jsonl.gz", port=running.port)
    assert wait_for(lambda: len(page.find(CARDS)) == 1, PATIENCE_S)
    page.shows(f"{CARDS} .chip", "healthy")
    assert page.find("#notes .gone") == []
    assert page.js("return window.same")


def test_password_is_asked_for_and_taken(agent: Any, view: Any, tmp_path: Path) -> None:
    """Without it there is nothing to see; with it the page is whole and updates itself."""
    password = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    locks = tmp_path / "web.yaml"
    locks.write_text(f"basic_auth_users: {{ops: '{password}'}}\n")
    locks.chmod(0o600)
    running = agent("replay:bundled", "--web-config-file", str(locks))
    assert view(running.url).find(CARDS) == []
    page = view(running.url.replace("http://", "http://ops:right@"))
    page.shows(f"{CARDS} .chip", "starving")
    before = page.texts(f"{CARDS} .since")
    assert wait_for(lambda: page.texts(f"{CARDS} .since") != before, PATIENCE_S)


def test_sixteen_gpus_over_four_hours(agent: Any, view: Any, root: Path) -> None:
    """Each has a card, the summary counts them all, and each span has its axis."""
    recordings = sorted((root / "tests/data/recordings").glob("[d-j]*.jsonl.gz"))[:16]
    page = view(agent(f"replay:{','.join(map(str, recordings))}").url)
    assert wait_for(lambda: len(page.find(CARDS)) >= 16, PATIENCE_S)
    page.shows("#sum", f"{len(page.find(CARDS))} GPUs")
    page.find(f"{CARDS} summary")[0].click()
    spans = page.find("#spans button")
    assert [span.text for span in spans] == ["5 min", "15 min", "1 hour", "4 hours"]
    for span, first in zip(spans, ("-5 min", "-15 min", "-60 min", "-4 h"), strict=True):
        span.click()
        page.shows(f"{CARDS}[open] .axis span", first)
    assert page.js("return document.documentElement.scrollWidth <= window.innerWidth")
    assert page.complaints == []


def test_hostile_names_are_text(agent: Any, view: Any, root: Path, tmp_path: Path) -> None:
    """A model that is markup is shown as it is written, and runs nothing; nor does it turn the text around."""
    source = root / "agent/gpuwhy/recordings/gemm.jsonl.gz"
    lines = gzip.decompress(source.read_bytes()).decode().splitlines()
    head = json.loads(lines[0])
    text = json.dumps(head)
    (model,) = set(re.findall(r"NVIDIA [A-Z]\w+", text))
    changed = tmp_path / "hostile.jsonl"
    changed.write_text(
        "\n".join([text.replace(json.dumps(model)[1:-1], json.dumps(HOSTILE)[1:-1]), *lines[1:], ""])
    )
    page = view(agent(f"replay:{changed}").url)
    page.shows(f"{CARDS}[open] .plain dd", "<img src=x onerror=document.title='run'>")
    assert not page.find("#gpus img")
    assert not any({"\u202e", "\x07"} & set(each) for each in page.texts("body"))
    assert page.js("return document.title") != "run"
    assert page.complaints == []


def test_table_without_script(agent: Any, view: Any, chromium: webdriver.Chrome) -> None:
    """A browser without scripts gets a table with a row for each GPU."""
    running = agent("replay:bundled")
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page = view(running.url)
    assert len(page.find("#gpus tbody tr")) >= 7
    assert not page.find(CARDS)
