"""Recounts that are due: the accounts of a client are held against the journal after a change.

``RECOUNTS`` / client id in RateBuckets. It is written with the change of the settings itself, so a
change without it can't be. What is recounted, and how, is `pricekeeper.budgets`' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.errors import InvalidValueError, UnreadableItemError
from pricekeeper.storage import Condition, Delete, Key, Put, Query, TypedItem, attr
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import EXPIRY
from pricekeeper.tenants.budget import Budget, QuotaEnforcement
from pricekeeper.tenants.configuration import AppSettings, OrgSettings

RECOUNT_AFTER_MS: Final = 60_000
"""How long after a change: every instance knows of it, and what it has decided before is written.

That is 30 s of an old policy, clocks that are 5 s apart, and a request that takes its time."""
LIFE_SECS: Final = 7 * 86_400
_PK: Final = "RECOUNTS"
_DUE, _VISIT, _TRIES = "due_ms", "visit", "tries"


class Recount(NamedTuple):
    """The accounts of a client are to be recounted from that moment on."""

    client: Client
    due_ms: int
    visit: int = 0
    tries: int = 0
    """How often it was begun at this visit."""


def is_wanted(
    before: OrgSettings | AppSettings | None,
    after: OrgSettings | AppSettings,
    org: OrgSettings | None = None,
) -> bool:
    """Whether a change gives a client accounts that others may not know of yet.

    ``before`` is ``None`` if it begins to exist. Then ``org`` are the settings of its organisation,
    if it is an app. How large a budget is does not matter: its account is the same.
    """
    if before is None:
        strict = after if isinstance(after, OrgSettings) else org
        enforcement = None if strict is None else strict.quota_enforcement
        return bool(after.budgets) or enforcement is QuotaEnforcement.STRICT
    return _accounts(before) != _accounts(after)


def _accounts(settings: OrgSettings | AppSettings) -> tuple[object, ...]:
    """What decides which accounts there are, and what counts in them."""
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
    """Have a client recounted, instead of at any other time."""
    item = {
        "PK": _PK,
        "SK": recount.client.client_id,
        _DUE: recount.due_ms,
        _VISIT: recount.visit,
        _TRIES: recount.tries,
        EXPIRY: recount.due_ms // 1000 + LIFE_SECS,
    }
    return Put(RATE_BUCKETS, item, condition)


def recount_delete(seen: Recount) -> Delete:
    """Nothing is left to do, unless somebody has decided otherwise."""
    return Delete(RATE_BUCKETS, Key(_PK, seen.client.client_id), is_as_seen(seen))


def is_as_seen(seen: Recount) -> Condition:
    """The condition that nobody has decided anything about it since it was seen."""
    return attr(_DUE).eq(seen.due_ms) & attr(_VISIT).eq(seen.visit) & attr(_TRIES).eq(seen.tries)


def recounts_query() -> Query:
    """Every recount that is to be made."""
    return Query(RATE_BUCKETS, _PK)


def recount_of(item: Mapping[str, Any]) -> Recount | None:
    """The recount; one that can't be read is reported, and is none."""
    try:
        typed = TypedItem(RATE_BUCKETS, item)
        try:
            client = parse_client_id(str(item["SK"]))
        except InvalidValueError as error:
            raise typed.report_unreadable("its sort key names no client") from error
        return Recount(client, typed.whole(_DUE), typed.whole(_VISIT), typed.whole(_TRIES))
    except UnreadableItemError:
        return None
