"""What people and programs read. To add a format, add its row to ``FORMATS`` and a module beside this one."""

from __future__ import annotations

import importlib

from gpuwhy.report.weekly.types import Report

# By name, what each is for. A module is loaded when it is asked for: the page needs the extra.
FORMATS = {
    "terminal": "to read here",
    "html": "one page to mail or print, with pictures",
    "markdown": "for wikis, issues and chats",
    "json": "all figures, for programs",
    "csv": "all hours by group, for spreadsheets",
}


def text(report: Report, form: str) -> str:
    """The report in a format; it ends with a newline. Raises ReportError where an extra is missing."""
    made: str = importlib.import_module(f"gpuwhy.report.weekly.formats.{form}").text(report)
    return made
