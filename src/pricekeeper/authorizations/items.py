"""Authorizations in the store: keys, codec, and the writes that change their state.

In UsageAggSharded, beside the journal:

- ``ORG#{org}#A#{region}`` / id: an authorization; its region, of 65.5 s, is in its id
- ``HOLDS#{visit}`` / ``{region}#{org}``: that region of that organisation is to be swept, for the
  first, second or third time
- ``UNSETTLED`` / ``{org}#{region}``: in that region are authorizations that nobody has settled

In RequestDedup, ``ORG#{org}#AUTH#{id}``: which authorization an id that the caller gave stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.authorizations.authorization import (
    HOLD_MS_MAX,
    LATE_MS_MAX,
    Authorization,
    Grant,
    Settlement,
    State,
    minted_ms,
    parse_id,
)
from pricekeeper.errors import InvalidValueError
from pricekeeper.storage import (
    ITEM_ABSENT,
    Condition,
    Delete,
    Item,
    Key,
    Put,
    Query,
    Set,
    Table,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.tables import REQUEST_DEDUP, USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY

HOLDS: Final = "HOLDS#"
UNSETTLED: Final = "UNSETTLED"
REGION_DIGITS: Final = 8
LIFE_SECS: Final = 3 * 86_400 + (HOLD_MS_MAX + LATE_MS_MAX) // 1000
"""How long an authorization is remembered: longer than it can be changed."""
_STATE, _GRANT, _NONCE, _UNTIL, _SETTLED = "state", "grant", "nonce", "until_ms", "settled"
_MARKER: Final = re.compile(r"([0-9a-f]{8})#([^#]{1,100})")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_grant: Final = msgspec.msgpack.Decoder(Grant).decode
_decode_settlement: Final = msgspec.msgpack.Decoder(Settlement).decode


def region_of(authorization_id: str) -> str:
    """The region of one of our ids."""
    return authorization_id[:REGION_DIGITS]


def authorization_key(org_id: str, authorization_id: str) -> Key:
    """Where an authorization is."""
    return Key(_partition(org_id, region_of(authorization_id)), authorization_id)


def authorization_put(org_id: str, authorization: Authorization) -> Put:
    """Write a new authorization, if there is none of that id."""
    key = authorization_key(org_id, authorization.id)
    item: Item = {
        "PK": key.pk,
        "SK": key.sk,
        _STATE: authorization.state.value,
        _GRANT: _encode(authorization.grant),
        _NONCE: authorization.nonce,
        _UNTIL: authorization.expires_at_ms,
        EXPIRY: minted_ms(authorization.id) // 1000 + LIFE_SECS,
    }
    return Put(USAGE_AGG_SHARDED, item, ITEM_ABSENT)


def change_update(org_id: str, before: Authorization, after: Authorization) -> Update:
    """Change what has become of an authorization, if it is still as it was seen."""
    actions = [
        Set(_STATE, after.state.value),
        Set(_NONCE, after.nonce),
        Set(_UNTIL, after.expires_at_ms),
    ]
    if after.settlement is not None:
        actions.append(Set(_SETTLED, _encode(after.settlement)))
    return Update(
        USAGE_AGG_SHARDED,
        authorization_key(org_id, before.id),
        tuple(actions),
        has_state(before) & attr(_NONCE).eq(before.nonce),
    )


def has_state(seen: Authorization) -> Condition:
    """The condition that the authorization has the state in which it was seen."""
    return attr(_STATE).eq(seen.state.value)


def authorization_of(item: Mapping[str, Any] | None) -> Authorization | None:
    """The authorization of an item; raises `UnreadableItemError` if it is none."""
    if item is None:
        return None
    typed = TypedItem(USAGE_AGG_SHARDED, item)
    try:
        settled = item.get(_SETTLED)
        return Authorization(
            id=typed.text("SK"),
            grant=_decode_grant(item[_GRANT]),
            state=State(item[_STATE]),
            expires_at_ms=typed.whole(_UNTIL),
            nonce=item[_NONCE],
            settlement=None if settled is None else _decode_settlement(settled),
        )
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise typed.report_unreadable(f"it is no authorization: {error}") from error


def alias_key(org_id: str, asked_as: str) -> tuple[Table, Key]:
    """Where it is said which authorization a caller's own id stands for."""
    return REQUEST_DEDUP, Key(f"ORG#{org_id}#AUTH#{asked_as}")


def alias_put(org_id: str, asked_as: str, authorization_id: str) -> Put:
    """Let a caller's own id stand for an authorization, if it stands for none."""
    table, key = alias_key(org_id, asked_as)
    expires = minted_ms(authorization_id) // 1000 + LIFE_SECS
    item: Item = {"PK": key.pk, "authorization_id": authorization_id, EXPIRY: expires}
    return Put(table, item, ITEM_ABSENT)


def aliased_id(item: Mapping[str, Any] | None) -> str | None:
    """The authorization that a caller's own id stands for."""
    if item is None:
        return None
    typed = TypedItem(REQUEST_DEDUP, item)
    try:
        return parse_id(typed.text("authorization_id"))
    except InvalidValueError as error:
        raise typed.report_unreadable("it names no authorization") from error


def marker_put(org_id: str, region: str, visit: int = 0) -> Put:
    """Have a region swept, any number of times."""
    sort_key = f"{region}#{org_id}"
    return _marker(f"{HOLDS}{visit}", sort_key, region)


def marker_delete(org_id: str, region: str, visit: int) -> Delete:
    """The region was swept."""
    return Delete(USAGE_AGG_SHARDED, Key(f"{HOLDS}{visit}", f"{region}#{org_id}"))


def markers_query(visit: int, last_region: str) -> Query:
    """The regions up to that one that are to be swept."""
    return Query(USAGE_AGG_SHARDED, f"{HOLDS}{visit}", first="0", last=f"{last_region}~")


def unsettled_put(org_id: str, region: str) -> Put:
    """Say that authorizations of a region are unsettled, any number of times."""
    return _marker(UNSETTLED, f"{org_id}#{region}", region)


def unsettled_query(org_id: str = "") -> Query:
    """The regions in which authorizations are unsettled, or were; of one organisation, or all."""
    return Query(USAGE_AGG_SHARDED, UNSETTLED, prefix=f"{org_id}#" if org_id else "")


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
    """The authorizations of a region."""
    return Query(USAGE_AGG_SHARDED, _partition(org_id, region))


def _marker(pk: str, sk: str, region: str) -> Put:
    expires = int(region, 16) * 65_536 // 1000 + LIFE_SECS
    return Put(USAGE_AGG_SHARDED, {"PK": pk, "SK": sk, EXPIRY: expires})


def _partition(org_id: str, region: str) -> str:
    return f"ORG#{org_id}#A#{region}"
