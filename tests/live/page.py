"""Draws the page of an agent that has replayed recordings for some minutes: ``python -m tests.live.page``."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from .programs import free_port, get, wait_for

ROOT = Path(__file__).parent.parent.parent
RECORDINGS = ("ddp_straggler", "parked_and_starved", "decode_attn", "train_gpt", "syn_sw_thermal")
SECONDS = 285  # as long as the page shows at first
OPENED = 0  # the card with its signals, evidence and next steps
WIDTH = 1200


def chromium(program: str, driver: str) -> webdriver.Chrome:
    """A browser without a window; its sandbox needs a user that is not root."""
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
    return webdriver.Chrome(options=options, service=Service(driver))


def draw(url: str, out: Path) -> None:
    """The whole page at ``url`` as a PNG."""
    browser = chromium(shutil.which("chromium") or "", shutil.which("chromedriver") or "")
    try:
        size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(url)
        wait_for(lambda: bool(browser.find_elements("css selector", "details.gpu")), 30)
        browser.find_elements("css selector", "details.gpu summary")[OPENED].click()
        time.sleep(1)
        size["height"] = browser.execute_script("return document.documentElement.scrollHeight")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.save_screenshot(str(out))
    finally:
        browser.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures/page.png")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the agent runs before")
    asked = parser.parse_args()
    listen = f"127.0.0.1:{free_port()}"
    files = ",".join(str(ROOT / f"tests/data/recordings/{name}.jsonl.gz") for name in RECORDINGS)
    with tempfile.TemporaryDirectory() as state:
        agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "gpuwhy", "run", "--config", "/dev/null", "--listen", listen),
                *("--source", f"replay:{files}", "--loop"),
            ],
            env={"STATE_DIRECTORY": state, "LC_ALL": "C.UTF-8"},
            stderr=subprocess.DEVNULL,
        )
        try:
            if not wait_for(lambda: _ready(listen), 60):
                sys.exit("page: the agent did not get ready")
            print(f"page: the agent replays for {asked.seconds:.0f} s", file=sys.stderr)
            time.sleep(asked.seconds)
            draw(f"http://{listen}/", asked.out)
        finally:
            agent.terminate()
            agent.wait()


def _ready(listen: str) -> bool:
    try:
        return get(f"http://{listen}/-/ready").startswith(b"ready")
    except OSError:
        return False


if __name__ == "__main__":
    main()
