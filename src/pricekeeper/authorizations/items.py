"""Authorizations in the store: keys, codec, and the writes that change their state.

In UsageAggSharded, beside the journal:

- ``ORG#{org}#A#{region}`` / id: an authorization; its region, of 65.5 s, is in its id
- ``HOLDS`` / ``{region}#{org}``: in that region of that organisation may be authorizations that
  are open, or that nobody has settled

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
)
from pricekeeper.storage import (
    ITEM_ABSENT,
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

HOLDS: Final = "HOLDS"
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
        attr(_STATE).eq(before.state.value) & attr(_NONCE).eq(before.nonce),
    )


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
    return None if item is None else str(TypedItem(REQUEST_DEDUP, item).text("authorization_id"))


def marker_put(org_id: str, region: str) -> Put:
    """Say that there may be open authorizations in a region, any number of times."""
    expires = int(region, 16) * 65_536 // 1000 + LIFE_SECS
    return Put(USAGE_AGG_SHARDED, {"PK": HOLDS, "SK": f"{region}#{org_id}", EXPIRY: expires})


def marker_delete(org_id: str, region: str) -> Delete:
    """Say that nothing is open in a region any more."""
    return Delete(USAGE_AGG_SHARDED, Key(HOLDS, f"{region}#{org_id}"))


def markers_query(last_region: str) -> Query:
    """The regions up to that one in which something may be open."""
    return Query(USAGE_AGG_SHARDED, HOLDS, first="0", last=f"{last_region}~")


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


def _partition(org_id: str, region: str) -> str:
    return f"ORG#{org_id}#A#{region}"
