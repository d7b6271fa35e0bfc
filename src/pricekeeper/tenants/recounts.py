"""Recounts that are due: a client's accounts are compared with the journal after a change.

``RECOUNTS`` / client id in RateBuckets is written in the transaction that changes the settings.
`pricekeeper.budgets` makes the recounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.errors import InvalidValueError
from pricekeeper.storage import Condition, Delete, Key, Put, Query, TypedItem, attr, readable
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import EXPIRY
from pricekeeper.tenants.configuration import AppSettings, Budget, OrgSettings, QuotaEnforcement

RECOUNT_AFTER_MS: Final = 60_000
"""By then every instance knows of the change and has written its earlier decisions.

30 s of an old policy, 5 s between clocks, and the length of a request.
"""
LIFE_SECS: Final = 7 * 86_400
_PK: Final = "RECOUNTS"
_DUE, _VISIT, _TRIES = "due_ms", "visit", "tries"


class Recount(NamedTuple):
    """A client whose accounts are to be recounted from ``due_ms`` on."""

    client: Client
    due_ms: int
    visit: int = 0
    tries: int = 0


def is_wanted(
    before: OrgSettings | AppSettings | None,
    after: OrgSettings | AppSettings,
    org: OrgSettings | None = None,
) -> bool:
    """Whether a change gives a client accounts that other instances may not know yet.

    ``before`` is ``None`` for a new client; ``org`` are the settings of a new app's organisation.
    """
    if before is None:
        strict = after if isinstance(after, OrgSettings) else org
        enforcement = None if strict is None else strict.quota_enforcement
        return bool(after.budgets) or enforcement is QuotaEnforcement.STRICT
    return _accounts(before) != _accounts(after)


def _accounts(settings: OrgSettings | AppSettings) -> tuple[object, ...]:
    """All that decides which accounts there are and what counts in them; not a budget's size."""
    budgets = frozenset(map(_account, settings.budgets or ()))
    quotas = None if settings.quotas is None else frozenset(settings.quotas)
    if isinstance(settings, AppSettings):
        return budgets, quotas
    strict = settings.quota_enforcement is QuotaEnforcement.STRICT
    return (
        budgets,
        settings.timezone,
        settings.tag_keys,
        (settings.quota_scope, quotas) if strict else None,
    )


def _account(budget: Budget) -> tuple[object, ...]:
    return budget.name, budget.window, frozenset(budget.labels), budget.per_tag


def recount_put(recount: Recount, condition: Condition | None = None) -> Put:
    """Schedule a recount, in place of the client's earlier one."""
    state = {_DUE: recount.due_ms, _VISIT: recount.visit, _TRIES: recount.tries}
    expiry = {EXPIRY: recount.due_ms // 1000 + LIFE_SECS}
    item = {"PK": _PK, "SK": recount.client.client_id, **state, **expiry}
    return Put(RATE_BUCKETS, item, condition)


def recount_delete(seen: Recount) -> Delete:
    """Remove a finished recount, unless it was rescheduled."""
    return Delete(RATE_BUCKETS, Key(_PK, seen.client.client_id), is_as_seen(seen))


def is_as_seen(seen: Recount) -> Condition:
    """The condition that the recount was not rescheduled since."""
    return attr(_DUE).eq(seen.due_ms) & attr(_VISIT).eq(seen.visit) & attr(_TRIES).eq(seen.tries)


def recounts_query() -> Query:
    """Query all scheduled recounts."""
    return Query(RATE_BUCKETS, _PK)


def recount_of(item: Mapping[str, Any]) -> Recount | None:
    """Return the recount; an unreadable one is reported, and is ``None``."""
    return readable(_recount_from, item)


def _recount_from(item: Mapping[str, Any]) -> Recount:
    typed = TypedItem(RATE_BUCKETS, item)
    try:
        client = parse_client_id(str(item["SK"]))
    except InvalidValueError as error:
        raise typed.report_unreadable("its sort key names no client") from error
    return Recount(client, typed.whole(_DUE), typed.whole(_VISIT), typed.whole(_TRIES))
