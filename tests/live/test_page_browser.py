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

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

from .programs import free_port, get, wait_for

REMEDY = "apt-get install chromium chromium-driver"
PATIENCE_S = 60.0
CARDS = "details.gpu"
HOSTILE = "<img src=x onerror=document.title='run'>\u202egnp.exe\x07"


class Agent:
    """An agent of this tree that loops recordings, ended by its pid."""

    def __init__(self, folder: Path, source: str, port: int | None = None) -> None:
        self.url = f"http://127.0.0.1:{port or free_port()}"
        self._log = (folder / "agent.log").open("ab")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gpuwhy", "run", "--config", "/dev/null", "--source", source),
                *("--loop", "--speed", "20", "--interval", "1", "--listen", self.url.removeprefix("http://")),
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
def agent(tmp_path: Path) -> Iterator[Callable[[str], Agent]]:
    started: list[Agent] = []

    def start(source: str) -> Agent:
        started.append(Agent(tmp_path, source))
        assert wait_for(started[-1].judged, PATIENCE_S)
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture(scope="module")
def chromium(require_program: Callable[[str, str], str]) -> Iterator[webdriver.Chrome]:
    """One browser for all tests here; its sandbox needs a user that is not root."""
    program, driver = require_program("chromium", REMEDY), require_program("chromedriver", REMEDY)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
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
    assert len(page.find(f"{CARDS}[open] .lane")) == 7
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
