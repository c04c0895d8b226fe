"""A release: one version, a changelog, and licences that are known."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gpuwhy

from .test_layout import tree_files  # one answer to what belongs to the tree

# An image's tag, its label, kustomize's tag, a requirement or the name of a built file.
STATED = re.compile(
    r"(?:\bgpuwhy:v?|image\.version=[\"']?|\bname: gpuwhy\n +(?:newName: \S+\n +)?newTag: [\"']?v?|\bgpuwhy ?[=~>]=+ ?|\bgpuwhy-|__version__ = \")(\d+\.\d+\.\d+)"
)
SOURCE = "agent/gpuwhy/__init__.py"
# Their versions are made up, or those of the past.
ASIDE = ("tests/", "CHANGELOG.md", "tools/grafana-render/")

PERMITTED = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "PSF-2.0"}
# As authors write them; where they do not say which of the BSD licences, docs/dependencies.md has looked.
WRITTEN = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
}
ON_SOME_PYTHONS = {"typing-extensions"}


def between(text: str, mark: str) -> str:
    return text.partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0]


def test_the_version_is_said_in_one_place(root: Path) -> None:
    """Who has to repeat it is named in docs/release.md and says the same; nobody else does."""
    found = {
        name: set(STATED.findall(file.read_text(errors="replace")))
        for file in tree_files(root)
        if not (name := file.relative_to(root).as_posix()).startswith(ASIDE)
        and file.suffix not in {".gz", ".png"}
    }
    says = {name: versions for name, versions in found.items() if versions}
    wrong = {name: versions for name, versions in says.items() if versions != {gpuwhy.__version__}}
    assert not wrong, f"the version is {gpuwhy.__version__}, but {wrong}"
    repeats = re.findall(
        r"^- `(.+)`$", between((root / "docs/release.md").read_text(), "repeats"), re.MULTILINE
    )
    assert sorted(says) == sorted([SOURCE, *repeats]), "docs/release.md names those that repeat the version"


def test_the_installed_package_has_that_version() -> None:
    """What pip says and what the program says is one number."""
    assert metadata.version("gpuwhy") == gpuwhy.__version__


def test_the_changelog_is_kept(root: Path) -> None:
    """It starts with what is not released, goes back in time, and knows the kinds of change that it says it has."""
    text = (root / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d{2}-\d{2})", each) for each in headings[1:]]
    assert all(released), headings
    order = [tuple(int(part) for part in each.groups()[:3]) for each in released]
    assert order == sorted(order, reverse=True)
    if released:
        assert ".".join(released[0].groups()[:3]) == gpuwhy.__version__
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed series", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def name_of(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def installed_with(name: str, extras: frozenset[str], found: set[str]) -> set[str]:
    """Distributions that come along, all the way down."""
    for line in metadata.requires(name) or []:
        wanted = Requirement(line)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        if (key := name_of(wanted.name)) not in found or wanted.extras:
            found.add(key)
            installed_with(wanted.name, frozenset(wanted.extras), found)
    return found


def licences(distribution: str) -> set[str]:
    """What a distribution says of itself, as SPDX identifiers where it can be told."""
    about = metadata.metadata(distribution)
    classifiers = [each for each in about.get_all("Classifier") or [] if each.startswith("License ::")]
    said = (
        about["License-Expression"]
        or about["License"]
        or " AND ".join(each.split(" :: ")[-1] for each in classifiers)
    )
    return {WRITTEN.get(part.lower(), part) for part in said.split(" AND ")}


def stated(root: Path) -> dict[str, str]:
    table = (root / "docs/dependencies.md").read_text().partition("## Licences")[2]
    return dict(re.findall(r"^\| ([a-z0-9][a-z0-9-]*) \| ([^|]+?) \|", table, re.MULTILINE)[1:])


def test_every_licence_is_known(root: Path) -> None:
    """All that comes along has a line with the licence that it says of itself, and that one is permitted."""
    known, found = stated(root), installed_with("gpuwhy", frozenset({"all"}), set()) - {"gpuwhy"}
    assert found - set(known) == set(), "docs/dependencies.md states no licence of these"
    assert set(known) - found - ON_SOME_PYTHONS == set(), "these come along no more"
    for name in sorted(found):
        parts = set(known[name].split(" AND "))
        assert parts <= PERMITTED, f"{name}: {known[name]}"
        families = parts | {part.partition("-")[0] for part in parts if part.startswith("BSD-")}
        assert licences(name) <= families, f"{name} says {licences(name)}, docs/dependencies.md {known[name]}"


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_licence_and_notice_are_there(root: Path, name: str) -> None:
    """Both files are in the tree and are named to the build."""
    assert (root / name).read_text().strip()
    assert (
        f'"{name}"'
        in re.search(r"^license-files = .+$", (root / "pyproject.toml").read_text(), re.MULTILINE).group()
    )
