"""Rendered files: written, found fresh, and found stale."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuwhy import render
from gpuwhy.render import files
from gpuwhy.render.files import Difference, notice


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Everything, rendered once: it takes a second."""
    return render.render_all()


@pytest.fixture
def once(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk is compared with what was rendered before."""
    monkeypatch.setattr(render, "render_all", lambda options=None: dict(texts))


@pytest.fixture
def tree(tmp_path: Path, once: None) -> Path:
    """A freshly rendered tree."""
    render.write(tmp_path)
    return tmp_path


def test_the_repository_is_fresh(root: Path) -> None:
    """What is checked in is what the tables say."""
    differences = render.check(root)
    assert not differences, "\n".join(map(str, differences))


def test_rendering_twice_gives_the_same(tree: Path) -> None:
    """A second write touches nothing."""
    assert render.write(tree) == []
    assert render.check(tree) == []


def test_rendering_is_deterministic(texts: dict[str, str]) -> None:
    """Each rendering gives the same, byte for byte."""
    assert render.render_all() == texts


def test_every_file_says_what_rendered_it(texts: dict[str, str]) -> None:
    """The first line names the tables and the command, and no line ending but LF occurs."""
    for path, text in texts.items():
        # JSON has no comments: there the description says it.
        said = json.loads(text)["description"] if path.endswith(".json") else text.partition("\n")[0]
        assert "gpuwhy render" in said, path
        assert "`agent/gpuwhy/" in said, path
        assert "\r" not in text
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


@pytest.mark.parametrize("path", [target.path for target in render.TARGETS])
def test_a_changed_file_is_found(tree: Path, path: str) -> None:
    """One changed character shows as a unified diff of that file alone."""
    file = tree / path
    sign, other = ('"title": ', '"tilte": ') if path.endswith(".json") else ("# ", "# X")
    file.write_text(file.read_text().replace(sign, other, 1))
    [difference] = render.check(tree)
    assert (difference.path, difference.kind) == (path, "changed")
    assert re.search(f"^-.*{other}", str(difference), re.MULTILINE)
    assert re.search(f"^\\+.*{sign}", str(difference), re.MULTILINE)
    assert "run `gpuwhy render`" in str(difference)


def test_changed_line_endings_are_found(tree: Path) -> None:
    """A file saved with CRLF differs, and the diff shows why."""
    file = tree / "docs" / "metrics.md"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    [difference] = render.check(tree)
    assert "\\r" in difference.diff


def test_a_file_that_is_no_text_is_found(tree: Path) -> None:
    """A damaged file is a difference, not an exception."""
    (tree / "docs" / "metrics.md").write_bytes(b"\xff\xfe\x00")
    assert [each.kind for each in render.check(tree)] == ["changed"]


def test_a_missing_file_is_found_and_written_again(tree: Path) -> None:
    """A missing file is named, and writing brings back that one alone."""
    file = tree / "docs" / "metrics.md"
    file.unlink()
    assert render.check(tree) == [Difference("docs/metrics.md", "missing")]
    assert render.write(tree) == [file]
    assert render.check(tree) == []


def test_an_empty_folder_misses_everything(tmp_path: Path, once: None) -> None:
    """Where nothing was ever rendered, each target is missing."""
    assert [each.path for each in render.check(tmp_path)] == sorted(target.path for target in render.TARGETS)


def test_an_orphan_is_found(tree: Path) -> None:
    """A file that says it is rendered, and is not any more, is named; a hand-written one is let be."""
    (tree / "docs" / "old.md").write_text(f"<!-- {notice('a table that went')} -->\n")
    (tree / "docs" / "dependencies.md").write_text(
        "# By hand\n\nRendered files are those that `gpuwhy render` makes.\n"
    )
    assert render.check(tree) == [Difference("docs/old.md", "orphan")]
    assert "delete it" in str(render.check(tree)[0])


def test_an_orphan_dashboard_is_found(tree: Path) -> None:
    """JSON says in its description that it is rendered; a dashboard of somebody's own is let be."""
    old = (tree / "dashboards" / "gpuwhy-fleet.json").read_text()
    (tree / "dashboards" / "gpuwhy-old.json").write_text(old)
    (tree / "dashboards" / "ours.json").write_text('{"title": "ours"}')
    assert render.check(tree) == [Difference("dashboards/gpuwhy-old.json", "orphan")]


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, once: None) -> None:
    """A folder that holds other files under these names is left as it is, and they are named."""
    own = tmp_path / "docs" / "metrics.md"
    own.parent.mkdir()
    own.write_text("# Our metrics\n")
    with pytest.raises(files.NotOursError, match=r"docs/metrics.md: there already.*--out"):
        render.write(tmp_path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [own]
    assert own.read_text() == "# Our metrics\n"


def test_any_other_file_in_a_whole_folder_is_an_orphan(tmp_path: Path) -> None:
    """In a folder that is wholly rendered, at any depth, a file needs no mark to be out of place."""
    texts = {"boards/a.json": "{}\n", "boards/more/b.json": "{}\n"}
    files.write(texts, tmp_path)
    assert files.check(texts, tmp_path, ["boards"]) == []
    (tmp_path / "boards" / "more" / "c.json").write_text("{}\n")
    assert files.check(texts, tmp_path) == []
    assert files.check(texts, tmp_path, ["boards"]) == [Difference("boards/more/c.json", "orphan")]
