"""The README shows what the product says and does now."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gpuwhy import cli
from gpuwhy import config as configuration
from gpuwhy.daemon import explain_recording
from gpuwhy.report.terminal import print_document
from gpuwhy.verdict.playbook import PLAYBOOK
from gpuwhy.verdict.vocabulary import CAUSES, VERDICTS

from .test_layout import tree_files

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SHOWN = "tests/data/recordings/ddp_straggler.jsonl.gz"


def test_output_shown_is_real(shown: Callable[[str, str, str], None]) -> None:
    """The output in the README is what the command prints, up to its first list of steps."""
    document = explain_recording(ROOT / SHOWN, configuration.load({}, {}, None).config)
    document["source"] = f"replay:{SHOWN}"
    out = io.StringIO()
    print_document(document, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    shown("README.md", "explain", "\n".join(["```", f"$ gpuwhy explain --replay {SHOWN}", *lines, "```", ""]))


def test_verdicts_and_causes_are_told() -> None:
    """The README names every verdict, and how many causes there are."""
    text = README.read_text()
    for verdict in VERDICTS:
        assert f"`{verdict}`" in text
    assert f"({len(CAUSES)} in all)" in text


@pytest.mark.parametrize(
    "page", [page.relative_to(ROOT).as_posix() for page in tree_files(ROOT) if page.suffix == ".md"]
)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link and picture of a page is a file or folder of the repository."""
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def test_commands_exist() -> None:
    """Every gpuwhy command that the README calls exists."""
    for command in re.findall(
        r"^(?:\$ )?gpuwhy ([a-z][a-z-]+)",
        "\n".join(re.findall(r"```.*?```", README.read_text(), re.DOTALL)),
        re.MULTILINE,
    ):
        assert command in cli.main.commands, command


def test_advice_and_docs_name_commands_that_exist() -> None:
    """Every `gpuwhy X` in docs and next steps is a command."""
    texts = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    texts += [step for play in PLAYBOOK for step in play.steps]
    for text in texts:
        for command in re.findall(r"`gpuwhy ([a-z][a-z-]+)", text):
            assert command in cli.main.commands, command


def test_no_placeholder_is_left() -> None:
    """No page has a mark that somebody meant to replace."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        assert "@@" not in page.read_text(), page.name
