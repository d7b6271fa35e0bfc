"""JSON merge patches (RFC 7396) of settings, before anything is checked.

A patch is applied to what a client states itself, in the form in which it was put: what an app
inherits is not in there. The result is parsed as the body of a PUT is, so a patch can do nothing
that a PUT could not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pricekeeper.tenants.configuration import AppSettings, OrgSettings
from pricekeeper.tenants.stored_settings import stored_settings

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
    body = stored_settings(settings)
    body.pop(_IMMUTABLE, None)
    for budget in body.get("budgets", ()):
        budget["labels"] = budget["labels"] or None  # a budget for all labels names none of them
        budget.setdefault("per_tag", None)
    return body


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
