"""Denials in the metrics: how many calls each organisation and app was denied, under their names.

The names are those that `http.spend` gives to lines of dollars: two of the same name are told apart
by their ids.
"""

from __future__ import annotations

from pricekeeper.activity.denials import OTHERS, DenialLog
from pricekeeper.http.spend import OTHER, ScopeOwner, name_series
from pricekeeper.metering.spend import Spender


def count_by_name(log: DenialLog) -> dict[tuple[str, str, str, str], int]:
    """What the process has noted, by organisation, app, the model asked for, and kind."""
    owners = {
        _scope(org_id, app_id): ScopeOwner(org_name, app_name, "")
        for (org_id, app_id), (org_name, app_name) in log.names.items()
    }
    chosen = {
        denier: Spender(_scope(denier.org_id, denier.app_id), denier.model)
        for denier in log.totals
        if denier != OTHERS
    }
    lines = name_series(owners, chosen.values())
    counts: dict[tuple[str, str, str, str], int] = {}
    for denier, count in log.totals.items():
        line = (OTHER, OTHER, OTHER) if denier == OTHERS else lines[chosen[denier]]
        labels = (*line, denier.kind)
        counts[labels] = counts.get(labels, 0) + count
    return counts


def _scope(org_id: str, app_id: str | None) -> str:
    return f"ORG#{org_id}" if app_id is None else f"ORG#{org_id}#APP#{app_id}"
