"""Authorizations in the store: keys, and the writes that grant them and change their state.

In UsageAggSharded, beside the journal, whose records of authorized calls are on sheets:

- ``ORG#{org}#J#{region}#0`` / ``s{digits}``: a sheet (`sheet`); the id of an authorization says on
  which it is, and its region, of 65.5 s
- ``HOLDS#{visit}`` / ``{region}#{org}``: that region of that organisation is to be swept, for the
  first, second or third time
- ``UNSETTLED#{period}`` / ``{org}#{region}``: in that region are authorizations that nobody has
  settled; a period is three days, the first digits of its regions

An id that the caller gave stands for an authorization at the place where a usage record of that id
would be: on its page, or in place of its receipt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.authorizations.sheet import GRANT, STATE, encode_grant, state_text
from pricekeeper.metering.journal import (
    REGION_DIGITS,
    StoredTerms,
    sheet_number,
    sheet_sort_key,
)
from pricekeeper.metering.journal_items import Written, sheet_partition
from pricekeeper.storage import (
    Action,
    Condition,
    Delete,
    Item,
    Key,
    Put,
    Query,
    Set,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.expressions import And, Attribute
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY

HOLDS: Final = "HOLDS#"
UNSETTLED: Final = "UNSETTLED#"
PERIOD_DIGITS: Final = 5
_SHEETS: Final = "s"
_MARKER: Final = re.compile(r"([0-9a-f]{8})#([^#]{1,100})")


class NewGrant(NamedTuple):
    """An authorization that is granted."""

    authorization: Authorization
    terms: StoredTerms


class StateChange(NamedTuple):
    """An authorization that changes, and the record that it becomes if it is captured."""

    before: Authorization
    after: Authorization
    record: Written | None = None


def region_of(authorization_id: str) -> str:
    """The region of one of our ids."""
    return authorization_id[:REGION_DIGITS]


def sheet_key(org_id: str, authorization_id: str) -> Key:
    """Where the sheet of an authorization is."""
    partition = sheet_partition(org_id, region_of(authorization_id))
    return Key(partition, sheet_sort_key(authorization_id))


def sheet_update(
    key: Key, granted: Sequence[NewGrant], changed: Sequence[StateChange], expires_at_epoch: int
) -> Update:
    """Grant authorizations on a sheet, and change others, all or nothing.

    What is granted must not be there, and what changes must be as it was seen.
    """
    values: dict[str, str | bytes | int] = {}
    conditions: list[Condition] = []
    for one, terms in granted:
        number = sheet_number(one.id)
        values[f"{GRANT}{number}"] = encode_grant(one, terms)
        values[f"{STATE}{number}"] = state_text(one)
        values[terms.name] = terms.data
        values[EXPIRY] = expires_at_epoch
        conditions.append(attr(f"{STATE}{number}").absent())
    for change in changed:
        state = f"{STATE}{sheet_number(change.before.id)}"
        values[state] = state_text(change.after)
        if change.record is not None:
            values[change.record.name] = change.record.data
            values[change.record.terms.name] = change.record.terms.data
        conditions.append(is_as_seen(attr(state), change.before))
    actions: tuple[Action, ...] = tuple(Set(name, value) for name, value in values.items())
    return Update(USAGE_AGG_SHARDED, key, actions, And(tuple(conditions)))


def is_as_seen(state: Attribute, seen: Authorization) -> Condition:
    """The condition that nothing has become of the authorization since it was seen."""
    return state.eq(state_text(seen))


def marker_put(org_id: str, region: str, expires_at_epoch: int, visit: int = 0) -> Put:
    """Have a region swept, any number of times.

    It is remembered for as long as what is in it: nobody may be there to sweep it for days.
    """
    key = {"PK": f"{HOLDS}{visit}", "SK": f"{region}#{org_id}"}
    return Put(USAGE_AGG_SHARDED, {**key, EXPIRY: expires_at_epoch})


def marker_delete(org_id: str, region: str, visit: int) -> Delete:
    """The region was swept."""
    return Delete(USAGE_AGG_SHARDED, Key(f"{HOLDS}{visit}", f"{region}#{org_id}"))


def markers_query(visit: int, last_region: str) -> Query:
    """The regions up to that one that are to be swept."""
    return Query(USAGE_AGG_SHARDED, f"{HOLDS}{visit}", first="0", last=f"{last_region}~")


def unsettled_put(org_id: str, region: str, expires_at_epoch: int) -> Put:
    """Say that authorizations of a region are unsettled, any number of times.

    It is remembered for as long as they are.
    """
    key = _unsettled_key(org_id, region)
    return Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, EXPIRY: expires_at_epoch})


def unsettled_delete(org_id: str, region: str) -> Delete:
    """Every authorization of the region is settled."""
    return Delete(USAGE_AGG_SHARDED, _unsettled_key(org_id, region))


def unsettled_queries(
    first_region: str, last_region: str, org_id: str = ""
) -> Iterator[tuple[str, Query]]:
    """For each period, where authorizations are unsettled, or were; the latest one first.

    It is of one organisation, or of all. Regions of the first and the last period may be outside.
    """
    prefix = f"{org_id}#" if org_id else ""
    first, last = (int(region[:PERIOD_DIGITS], 16) for region in (first_region, last_region))
    for number in range(last, first - 1, -1):
        period = f"{number:0{PERIOD_DIGITS}x}"
        yield period, Query(USAGE_AGG_SHARDED, UNSETTLED + period, prefix=prefix)


def _unsettled_key(org_id: str, region: str) -> Key:
    return Key(f"{UNSETTLED}{region[:PERIOD_DIGITS]}", f"{org_id}#{region}")


def unsettled_region(item: Item) -> tuple[str, str]:
    """The organisation and the region of such a marker."""
    org_id, _, region = str(item["SK"]).rpartition("#")
    return org_id, region


def marker_of(item: Item) -> tuple[str, str] | None:
    """The region and the organisation of a marker; one that names neither is reported."""
    named = _MARKER.fullmatch(str(item["SK"]))
    if named is None:
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable("its sort key names no region")
        return None
    return named[1], named[2]


def region_query(org_id: str, region: str) -> Query:
    """The sheets of a region."""
    return Query(USAGE_AGG_SHARDED, sheet_partition(org_id, region), prefix=_SHEETS)
