"""What each format shows, and that no name gets out of its place."""

from __future__ import annotations

import csv
import functools
import html.parser
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.report.weekly import formats, words
from gpuwhy.report.weekly.formats import charts, markdown
from gpuwhy.report.weekly.formats.csv import COLUMNS
from gpuwhy.report.weekly.types import Report

from .made import COPY, HELD, TRAIN, Made, a_week

ENDINGS = {"terminal": "txt", "html": "html", "markdown": "md", "json": "json", "csv": "csv"}
HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    '=HYPERLINK("http://evil","x")',
    "+1+cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "-2+3",
    "\t=1+1",
    "\uff1d1+1",
    "a|b|c",
    "[x](javascript:alert(1)) ![y](http://evil/z.png)",
    "`code` ``more`` @everyone #1 http://evil.example www.evil.example",
    "line\nbreak\r\n# heading",
    "\x1b[2J\x1b]0;title\x07red",
    "\u202egnp.exe",
    "\x9b31m",
    "{{ 7*7 }} {% raw %} ${7*7}",
    "x" * 500,
    "",
    " ",
    "&lt;b&gt; &amp;",
    "\ud800 lone",
]


@pytest.fixture(scope="module")
def report() -> Report:
    return replace_version(a_week().report(price=2.0))


def replace_version(report: Report) -> Report:
    return replace(report, about=replace(report.about, version="0"))


@functools.cache
def hostile(name: str) -> Report:
    made = Made()
    workload = ("slurm", name, name, name)
    made.places[workload] = (name,)
    for week in range(3):
        made.put(
            range(168), week=week, useful=1800.0 - 600 * (week == 0), workload=workload, host=name, model=name
        )
        made.put(range(168), week=week, gpu=1, lost={COPY: 900.0, HELD: 900.0}, workload=workload, host=name)
        made.put(range(9), week=week, lost={("throttled", name): 9.0}, host=name, verdict=("throttled", name))
    return made.report(price=1.0, notes=(f"The server warns: {name}",))


@pytest.mark.parametrize("form", formats.FORMATS)
def test_golden(report: Report, form: str, golden: Callable[[str, str], None]) -> None:
    """A whole report in each format is what it was when the golden was reviewed."""
    golden(f"report/week.{ENDINGS[form]}", formats.text(report, form))


@pytest.mark.parametrize("form", formats.FORMATS)
@pytest.mark.parametrize("made", [Made(), Made("this-week")], ids=["week", "part"])
def test_an_empty_report_in_every_format(form: str, made: Made) -> None:
    """Nothing observed is said in every format, and breaks none."""
    text = formats.text(made.report(price=1.0), form)
    if form != "csv":
        assert "No data for" in text
    assert text.endswith("\n")
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)


@pytest.mark.parametrize("form", formats.FORMATS)
def test_one_hour_in_every_format(form: str) -> None:
    """The smallest report that there is has all its sections."""
    made = Made()
    made.put([5], useful=60.0, lost={COPY: 3540.0}, workload=TRAIN)
    assert "copy" in formats.text(made.report(), form)


class Page(html.parser.HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def skeleton(page: Page) -> list[str]:
    return [tag for tag, _ in page.elements]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_text_in_the_page(name: str) -> None:
    """A page has the same elements whatever names say, and shows them."""
    plain, attacked = (Page(formats.text(hostile(each), "html")) for each in ("harmless", name))
    # Who has no name has no element for it.
    assert skeleton(attacked) == skeleton(plain) or not name.strip()
    for _, attributes in attacked.elements:
        assert not any(key.startswith("on") for key in attributes)
    shown = words.short(words.clean(name)).strip()
    assert shown in attacked.text or not shown or "\n" in name
    assert "\u202e" not in attacked.text
    assert "\x1b" not in attacked.text


def test_the_page_asks_for_nothing_outside(report: Report) -> None:
    """No element that loads, no address, and a policy that would refuse it."""
    text = formats.text(report, "html")
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "embed",
        "base",
    }
    for tag, attributes in page.elements:
        assert not {"src", "href", "xlink:href", "srcset", "action", "background"} & attributes.keys(), tag
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in page.text
    [policy] = [
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert len(text) < 102_400  # some mail programs cut what is longer


def test_pictures_say_what_they_show(report: Report) -> None:
    """Every picture has a title and a name for those who do not see it."""
    page = Page(formats.text(report, "html"))
    pictures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(pictures) == 3 + len(report.heat)
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in pictures)


def test_a_large_fleet_stays_a_page() -> None:
    """Only what lost most is shown, and the page says how much is left out."""
    made = Made()
    for number in range(60):
        for hour in range(168):
            made.put(
                [hour],
                host=f"host-{number:03d}",
                workload=("slurm", f"job-{number}", "", "ann"),
                lost={COPY: 40.0 * (number + hour % 7)},
                useful=900.0,
            )
    text = formats.text(made.report(), "html")
    assert "These are the 24 of 60 hosts that lost most." in text
    assert "And 45 more, in the formats json and csv." in text
    assert len(text) < 400_000


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_computes_nothing_in_a_spreadsheet(name: str) -> None:
    """Every cell is a figure or a text that no spreadsheet takes for a formula."""
    rows = list(csv.reader(io.StringIO(formats.text(hostile(name), "csv"))))
    assert rows[0] == list(COLUMNS)
    assert all(len(row) == len(COLUMNS) for row in rows)
    for row in rows[1:]:
        float(row[-1])
        assert not any(
            cell.lstrip()[:1] in "=+-@\uff1d\uff0b\uff0d\uff20" for cell in row[:-1] if cell.strip()
        )
        assert all(cell.isprintable() for cell in row)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_moves_nothing_in_a_terminal(name: str) -> None:
    """No letter is left that a terminal would obey."""
    text = formats.text(hostile(name), "terminal")
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_no_markup_in_markdown(name: str) -> None:
    """Tables keep their columns, and outside of code nothing is a link, a tag or a mention."""
    text = formats.text(hostile(name), "markdown")
    for line in text.splitlines():
        assert line.replace("\u200b", "").isprintable()
        cells = re.split(r"(?<!\\)\|", line)
        if line.startswith("|"):
            assert len(cells) in {6, 7, 8, 9, 12, 4, 5}
        prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)
        assert not re.search(r"(?<!\\)<[a-z/!]", prose), prose
        assert not re.search(r"(?<!\\)\]\(", prose), prose
        assert not re.search(r"[@#](?=[\w])(?<!\u200b)|https?://", prose), prose


@given(st.text(max_size=80))
def test_code_spans_hold_any_name(name: str) -> None:
    """Whatever the name, its span ends where it should: the fence occurs nowhere within."""
    span = markdown.code(name)
    fence = re.match(r"`+", span).group()
    inner = span[len(fence) : -len(fence)]
    assert span.endswith(fence)
    assert fence not in re.findall(r"`+", inner)
    assert "\n" not in span
    assert "|" not in re.sub(r"\\\|", "", inner)


def test_json_is_all_of_it(report: Report) -> None:
    """Strict JSON in plain ASCII with every figure, of a named schema."""
    text = formats.text(report, "json")
    assert text.isascii()
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema"] == "gpuwhy-report/1"
    assert document["fleet"]["hours"]["efficiency"] == report.fleet.hours.efficiency
    assert len(document["groups"]) == len(report.groups)
    assert document["fixes"][0]["steps"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_json_keeps_names_as_they_are(name: str) -> None:
    """Programs get the name itself, escaped."""
    text = formats.text(hostile(name), "json")
    assert text.isascii()
    names = {group["labels"]["host"] for group in json.loads(text)["groups"] if group["level"] == "instance"}
    assert names == {name}


def test_terminal_fits_80_columns(report: Report) -> None:
    assert max(map(len, formats.text(report, "terminal").splitlines())) <= 80


def test_csv_adds_up(report: Report) -> None:
    """A spreadsheet that sums the hosts gets the fleet."""
    rows = list(csv.DictReader(io.StringIO(formats.text(report, "csv"))))
    now = [row for row in rows if row["start"] == report.about.start]
    for quantity in ("observed", "useful", "lost"):
        sums = {
            level: sum(
                float(row["gpu_hours"])
                for row in now
                if (row["level"], row["quantity"], row["verdict"]) == (level, quantity, "")
            )
            for level in ("fleet", "instance", "gpu")
        }
        assert sums["instance"] == pytest.approx(sums["fleet"], abs=1e-3)
        assert sums["gpu"] == pytest.approx(sums["fleet"], abs=1e-3)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (["h1", "h2", "h3", "h4"], "h1..h4"),
        (["h10", "h9", "h8"], "h8..h10"),
        (["b", "a"], "a, b"),
        (["n01.x", "n02.x", "n03.x", "z"], "n01.x..n03.x, z"),
        (["h1", "h2"], "h1, h2"),
        ([f"h{2 * each}" for each in range(9)], "h0, h2, h4, h6 and 5 more"),
        ([], ""),
    ],
)
def test_hosts_in_few_words(hosts: list[str], said: str) -> None:
    assert words.folded(hosts) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(1344.2, "1,344"), (99.96, "100"), (12.54, "12.5"), (0.03, "0.03"), (0.0, "0"), (None, "\u2013")],
)
def test_hours_in_words(value: float | None, said: str) -> None:
    assert words.hours(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1.0, "100 %"),
        (0.996, "99 %"),
        (0.31, "31 %"),
        (0.004, "0.4 %"),
        (0.0, "0 %"),
        (1e-6, "<0.1 %"),
        (None, "\u2013"),
    ],
)
def test_ratios_in_words(value: float | None, said: str) -> None:
    assert words.percent(value) == said


def test_what_pictures_are_made_of_is_escaped() -> None:
    """A title or a name in a picture is text."""
    assert charts.tag("text", "<b>", title='"x"') == '<text title="&#34;x&#34;">&lt;b&gt;</text>'


def test_the_docs_show_a_report(report: Report, shown: Callable[[str, str, str], None]) -> None:
    """The example in the docs is what the code prints."""
    shown("docs/report.md", "example", f"```\n{formats.text(report, 'terminal')}```\n")
