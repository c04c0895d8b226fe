"""Pieces of annotations, in the template language that Prometheus and vmalert share."""

from __future__ import annotations

import re

_MARK = "\x00"


def same(*labels: str) -> tuple[str, ...]:
    """Matchers for a ``query``: the series that carry the alert's own values of these labels."""
    return tuple(f"{label}={_MARK}{label}{_MARK}" for label in labels)


def each(expr: str, text: str) -> str:
    """``text`` for each series that the query returns, in which ``.Labels`` and ``.Value`` are its own.

    Nothing where it returns none.
    """
    labels = "".join(f" $labels.{label}" for label in re.findall(f"{_MARK}(.+?){_MARK}", expr))
    form = re.sub(f"{_MARK}.+?{_MARK}", "%q", expr.replace("%", "%%"))
    quoted = form.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{{{ range printf "{quoted}"{labels} | query }}}}{text}{{{{ end }}}}'


def label(name: str) -> str:
    """The alert's own value of a label."""
    return f"{{{{ $labels.{name} }}}}"


def value(unit: str) -> str:
    """The alert's value, in words of a unit: ``Duration``, ``Percentage`` or "" for a bare number."""
    return f"{{{{ $value | humanize{unit} }}}}"


def gpu(host: str) -> str:
    """Which row the alert is about."""
    mig = f"{{{{ if $labels.mig }}}} (MIG instance {label('mig')}){{{{ end }}}}"
    return f"GPU {label('gpu')}{mig} on {label(host)}"


def workload(labels: str) -> str:
    """A workload's name, with what tells it apart; ``labels`` is ``$labels`` or ``.Labels``."""

    def given(name: str, text: str) -> str:
        return f"{{{{ if {labels}.{name} }}}}{text}{{{{ end }}}}"

    namespace = given("workload_namespace", f"{{{{ {labels}.workload_namespace }}}}/")
    owner = given("workload_owner", f" of {{{{ {labels}.workload_owner }}}}")
    return f"{namespace}{{{{ {labels}.workload }}}}{owner}"
