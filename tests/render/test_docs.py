"""The reference in docs/ leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwhy import catalog, config
from gpuwhy.render import docs
from gpuwhy.verdict import cards, playbook, vocabulary


def _rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("page", [docs.configuration, docs.metrics, docs.verdicts])
def test_tables_are_well_formed(page) -> None:
    """All rows of a table have as many cells as its heading."""
    for table in re.findall(r"(?:^\|.*\n)+", page(), flags=re.MULTILINE):
        assert len({len(cells) for cells in _rows(table)}) == 1, table


@pytest.mark.parametrize("option", config.options(), ids=lambda option: option.key)
def test_every_option_is_documented(option: config.Option) -> None:
    """Each option has one row with what it takes, its default, environment name, flag and meaning."""
    [row] = [row for row in _rows(docs.configuration()) if f"`{option.environment}`" in row]
    assert row == [
        f"`{option.name}`",
        option.expected,
        f"`{config.as_text(option.default)}`",
        f"`{option.environment}`",
        f"`{option.flag}`" if option.flag else "",
        option.description,
    ]
    for item in option.items:
        assert [f"`{item.name}`", item.expected, item.description] in _rows(docs.configuration())


def test_the_example_loads(tmp_path: Path) -> None:
    """The example names every option, and loads as the defaults with one override."""
    [example] = re.findall(r"```yaml\n(.*?)```", docs.configuration(), flags=re.DOTALL)
    file = tmp_path / "config.yaml"
    file.write_text(example)
    loaded = config.load({}, {}, file)
    assert "default" not in loaded.origins.values()
    assert loaded.config.agent == config.AgentConfig()
    assert loaded.config.http == config.HttpConfig()
    assert loaded.config.cards.numbers == {"H200": {"dram_peak_ratio": 0.92}}


def test_every_series_is_documented_once() -> None:
    """Each series of the catalogue stands in one table, with its kind, unit and meaning."""
    rows = _rows(docs.metrics())
    for series in catalog.SERIES:
        [row] = [row for row in rows if row[0].split(", ")[0] == f"`{series.sample_names[0]}`"]
        assert row[1:3] == [series.kind, series.unit]
        assert row[-1] == series.help
        assert all(f"`{label}`" in row[3] for label in series.own_labels)
        assert ("identity" in row[3]) == series.per_gpu
        assert row[4] in docs.metrics().partition("## Seconds")[0]


def test_every_closed_label_value_is_documented() -> None:
    """The page lists the values of each label that the catalogue closes."""
    text = docs.metrics()
    for values in (
        catalog.ACTIVITY_UNITS,
        catalog.CLOCK_REASONS,
        catalog.REJECTION_REASONS,
        catalog.HOST_CPU_MODES,
    ):
        assert ", ".join(f"`{value}`" for value in values) in text


@pytest.mark.parametrize("cause", vocabulary.CAUSES, ids=lambda cause: "/".join(cause.key))
def test_every_cause_is_documented(cause: vocabulary.Cause) -> None:
    """Each cause has a row that links to a section, and all its steps stand there."""
    text = docs.verdicts()
    assert f"| [`{cause.name}`](#{cause.verdict}-{cause.name}) | {cause.meaning} |" in text
    [section] = re.findall(
        rf"^### {cause.verdict}: {cause.name}\n(.*?)(?=^##)", text, flags=re.MULTILINE | re.DOTALL
    )
    play = playbook.PLAY_BY_KEY[cause.key]
    assert len(re.findall(r"^\d\. ", section, flags=re.MULTILINE)) == len(play.steps)
    for line in (play.confirm, play.when_normal, play.source):
        assert line in section
    assert "{gpu}" not in section
    assert "{pid}" not in section


def test_every_threshold_and_card_is_documented() -> None:
    """Each limit of the rules and each card has a row."""
    rows = _rows(docs.verdicts())
    limits = list(docs.thresholds())
    assert {limit.module for limit in limits} >= {"rules.throttled", "rules.starving", "rules.idle"}
    for limit in limits:
        assert [f"`{limit.module}`", limit.limit.why] in [[row[0], row[-1]] for row in rows]
    assert [row[0] for row in rows][-len(cards.CARDS) - 1 :] == [
        *(card.name for card in cards.CARDS),
        "unknown",
    ]


def test_a_cell_cannot_break_its_table() -> None:
    """Pipes and line breaks in a cell are written so that the row stays one row."""
    columns = (docs.Column("text", lambda row: row), docs.Column("size", lambda row: str(len(row))))
    assert docs._table(columns, ["a|b\nc"]) == "| text | size |\n| --- | --- |\n| a\\|b c | 5 |"
