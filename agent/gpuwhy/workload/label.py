"""What becomes of names before they are labels, and what a workload's profile is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from gpuwhy.sample import Tenant, Workload
from gpuwhy.workload.tables import UNNAMED

_MARK = 7  # characters of "~" and a hash, which keep two long names apart that begin alike


def clean(text: str, most: int) -> str:
    """``text`` in one line of at most ``most`` characters that print: names come from pods and processes."""
    # A surrogate does not print either.
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[: 8 * most]).strip()
    if len(shown) <= most and len(text) <= 8 * most:
        return shown
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{shown[: most - _MARK]}~{digest[: _MARK - 1]}"


def label(tenant: Tenant, profiles: Mapping[str, str], most: int) -> Tenant:
    """``tenant`` with names that may be labels, and with the profile that a selector gives it."""
    of = tenant.workload
    workload = Workload(
        of.kind, clean(of.name, most) or UNNAMED, clean(of.namespace, most), clean(of.owner, most)
    )
    profile, hint = tenant.profile, clean(tenant.hint, most)
    for selector, wanted in profiles.items():
        if selects(selector, workload):
            profile, hint = wanted, f"workloads.profiles {clean(selector, most)!r}"
            break
    return replace(tenant, workload=workload, run=clean(tenant.run, most), profile=profile, hint=hint)


def selects(selector: str, workload: Workload) -> bool:
    """Whether ``[KIND:][NAMESPACE/]NAME`` with ``*`` and ``?`` fits; what it does not name may be anything."""
    kind, colon, rest = selector.partition(":")
    if not colon:
        kind, rest = "*", selector
    if not fnmatchcase(workload.kind, kind):
        return False
    namespace, slash, name = rest.partition("/")
    # Images have slashes in their names.
    return fnmatchcase(workload.name, rest) or bool(
        slash and fnmatchcase(workload.namespace, namespace) and fnmatchcase(workload.name, name)
    )
