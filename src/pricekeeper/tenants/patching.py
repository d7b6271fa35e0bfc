"""JSON merge patches (RFC 7396) of settings, before anything is checked.

A patch is applied to what a client states itself, in the form in which it was put: what an app
inherits is not in there. The result is parsed as the body of a PUT is, so a patch can do nothing
that a PUT could not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import msgspec

from pricekeeper.tenants.budget import Budget
from pricekeeper.tenants.configuration import AppSettings, OrgSettings

DEPTH_MAX: Final = 3
"""How deep objects lie below a field: a limit's label, its name, and what the limit says."""
_IMMUTABLE: Final = "agg_shard_count"
"""It is kept whatever a body says, so it need not be stated: an imported one may be a number that
no body can have."""


def patched_body(
    settings: OrgSettings | AppSettings, patch: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What the client would be put with if somebody edited its body as the patch says.

    A field that the patch removes is there as null, which is no value: so a field that does not
    exist is refused also if it is to be removed.
    """
    stated = stated_body(settings)
    return {
        **stated,
        **{
            name: None if value is None else _merged(stated.get(name), value, DEPTH_MAX)
            for name, value in patch.items()
        },
    }


def stated_body(settings: OrgSettings | AppSettings) -> dict[str, Any]:
    """The settings as the body of a PUT: what an app inherits is left out."""
    body = {name: value for name, value in asdict(settings).items() if value is not None}
    body.pop(_IMMUTABLE, None)
    if "budgets" in body:
        body["budgets"] = list(map(_budget_body, body["budgets"]))
    plain: dict[str, Any] = msgspec.to_builtins(body)
    if "alerts" in plain:
        plain["alerts"]["quota_at_pct"] = list(plain["alerts"]["quota_at_pct"])
    for name in ("model_ordering", "tag_keys"):
        if name in plain:
            plain[name] = list(plain[name])
    return plain


def _budget_body(budget: Budget) -> dict[str, Any]:
    """The budget as a body has it: for all labels it names none of them."""
    plain: dict[str, Any] = msgspec.to_builtins(budget)
    lists = {"labels": list(budget.labels) or None, "alert_at_pct": list(budget.alert_at_pct)}
    return {**plain, **lists}


def _merged(target: Any, patch: Any, depth: int) -> Any:
    """The target with what the patch says; null removes, and all but objects is replaced.

    What lies deeper than any setting is replaced, too: it is refused anyway.
    """
    if not isinstance(patch, dict) or not depth:
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value, depth - 1)
    return merged
