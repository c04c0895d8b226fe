"""The report as JSON: ``types.Report`` as it is, in plain ASCII."""

from __future__ import annotations

import json

import msgspec

from gpuwhy.report.weekly.types import Report


def text(report: Report) -> str:
    return json.dumps(msgspec.to_builtins(report), indent=2, allow_nan=False) + "\n"
