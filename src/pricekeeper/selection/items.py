"""Items of the StickyState table: one per client and day, with two independent parts.

- The **fallback**, in the item of the scope whose quotas count: ``active_model_label``,
  ``active_model_index``, ``reason``, ``previous_model_label``, ``activated_at_epoch``.
  ``given_up_model_labels`` is a set that only grows, and ``given_up_quota.{label}`` the quota that
  the label had spent when it was last given up. ``comeback.{label}`` says whether the label is used
  again because its quota was raised; ``comeback_version`` counts these changes.
- The **override**, in the item of its client: ``override_model_label`` and
  ``override_activated_at_epoch``. ``override_incarnation`` is the client's life, so a recreated
  client has no override. ``override_version`` counts the commands that set and cleared it.

Neither write touches the other's attributes, so both survive a race. The day is in the key: the
next day starts without either.

Each write adds an entry of history: ``history_flip_{index}``, ``history_comeback_{version}`` or
``history_override_{version}``. So the item outlives its day by `KEPT_DAYS`. In Activity,
``FLIPS#{org}`` / ``{day}#{app}`` marks that something may have changed there; without an app, of
the organisation itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.activity import event as activity
from pricekeeper.activity.event import decode_flip
from pricekeeper.activity.event import encode as encode_event
from pricekeeper.days import date_of
from pricekeeper.selection.fallback import Comeback, Override, Reason, StickyFlip, StickyState
from pricekeeper.storage import (
    ITEM_ABSENT,
    Action,
    Add,
    Key,
    Put,
    Query,
    Remove,
    Set,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.tables import ACTIVITY, STICKY_STATE
from pricekeeper.storage.values import EXPIRY
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import ModelLabel

KEPT_DAYS: Final = 35
HISTORY_KEPT: Final = 50
"""Override commands, and comebacks, of one day."""
_SECS_PER_DAY: Final = 86_400

_LABEL: Final = "active_model_label"
_INDEX: Final = "active_model_index"
_REASON: Final = "reason"
_PREVIOUS: Final = "previous_model_label"
_ACTIVATED: Final = "activated_at_epoch"
_GIVEN_UP: Final = "given_up_model_labels"
_GIVEN_UP_QUOTA: Final = "given_up_quota."
_COMEBACK: Final = "comeback."
_COMEBACK_FIELDS: Final = ("quota_usd_micros", "is_back", "policy_epoch")
_COMEBACK_VERSION: Final = "comeback_version"
_OVERRIDE: Final = "override_model_label"
_OVERRIDE_ACTIVATED: Final = "override_activated_at_epoch"
_OVERRIDE_INCARNATION: Final = "override_incarnation"
_OVERRIDE_VERSION: Final = "override_version"
_HISTORY: Final = "history_"


def sticky_key(scope_key: str, day: str) -> Key:
    """The key of a scope's fallback."""
    return Key(scope_key, f"DAY#{day}")


def override_key(client: Client, day: str) -> Key:
    """The key of a client's override."""
    own = f"ORG#{client.org_id}"
    return sticky_key(own if client.app_id is None else f"{own}#APP#{client.app_id}", day)


def sticky_state(item: Mapping[str, Any] | None) -> StickyState | None:
    """The fallback in the item, if any. Only the label is required."""
    if item is None or _LABEL not in item:
        return None
    typed = TypedItem(STICKY_STATE, item)
    return StickyState(
        active_label=ModelLabel(typed.text(_LABEL)),
        active_index=typed.whole(_INDEX, 0),
        previous_label=ModelLabel(typed.text(_PREVIOUS, "")),
        activated_at_epoch=typed.whole(_ACTIVATED, 0),
        given_up=frozenset(map(ModelLabel, typed.texts(_GIVEN_UP, ()))),
        given_up_at_usd_micros={
            ModelLabel(name.removeprefix(_GIVEN_UP_QUOTA)): typed.whole(name)
            for name in item
            if name.startswith(_GIVEN_UP_QUOTA)
        },
        comebacks={
            one.label: one
            for one in (_comeback(typed, name) for name in item if name.startswith(_COMEBACK))
        },
        comeback_version=typed.whole(_COMEBACK_VERSION, 0),
    )


def _comeback(typed: TypedItem, name: str) -> Comeback:
    stored = {**typed.mapping(name), "label": name.removeprefix(_COMEBACK)}
    try:
        return msgspec.convert(stored, Comeback)
    except msgspec.ValidationError as error:
        raise typed.report_unreadable(f"{name} can't be read: {error}") from error


def override(client: Client, incarnation: str, item: Mapping[str, Any] | None) -> Override | None:
    """The override in the client's item, if it was set in this life of the client."""
    if item is None or _OVERRIDE not in item:
        return None
    typed = TypedItem(STICKY_STATE, item)
    if typed.text(_OVERRIDE_INCARNATION, "") != incarnation:
        return None
    label = ModelLabel(typed.text(_OVERRIDE))
    return Override(client, label, typed.whole(_OVERRIDE_ACTIVATED, 0))


def adopted_put(item: Mapping[str, Any], policy: Policy, ends_at_ms: int) -> Put:
    """Store a sticky state of the schema document in our form, unless there is one already.

    The document stores an override as a fallback with the reason ``MANUAL_OVERRIDE``. Labels that
    were given up are those before its index in the ordering.
    """
    typed = TypedItem(STICKY_STATE, item)
    label, activated = typed.text(_LABEL), typed.whole(_ACTIVATED, 0)
    made: dict[str, Any] = {
        "PK": item["PK"],
        "SK": item["SK"],
        EXPIRY: _expires_at_epoch(ends_at_ms),
    }
    if typed.text(_REASON, "") == Reason.MANUAL_OVERRIDE.value:
        made |= {_OVERRIDE: label, _OVERRIDE_ACTIVATED: activated, _OVERRIDE_VERSION: 1}
        made[_OVERRIDE_INCARNATION] = policy.incarnation
        return Put(STICKY_STATE, made, ITEM_ABSENT)
    ordering, previous = policy.model_ordering, typed.text(_PREVIOUS, "")
    index = ordering.index(ModelLabel(label)) if label in ordering else typed.whole(_INDEX, 0)
    made |= {_LABEL: label, _INDEX: index, _PREVIOUS: previous, _ACTIVATED: activated}
    made[_REASON] = Reason.QUOTA_EXCEEDED.value
    if given_up := frozenset(filter(None, (*ordering[:index], previous))):
        made[_GIVEN_UP] = given_up
    return Put(STICKY_STATE, made, ITEM_ABSENT)


def flip_update(key: Key, flip: StickyFlip, entry: activity.Flip) -> Update:
    """Record a flip, unless another instance has recorded it or a later one.

    It may be sent again. A label that is given up before it was used is not in the history.
    """
    noted = (Set(f"{_HISTORY}flip_{flip.index}", encode_event(entry)),) if is_change(entry) else ()
    return Update(
        STICKY_STATE,
        key,
        (
            Set(_LABEL, flip.label),
            Set(_INDEX, flip.index),
            Set(_REASON, Reason.QUOTA_EXCEEDED.value),
            Set(_PREVIOUS, flip.previous_label),
            Set(_ACTIVATED, entry.at_ms // 1000),
            Add(_GIVEN_UP, flip.given_up),
            *(
                Set(_GIVEN_UP_QUOTA + label, quota_usd_micros)
                for label, quota_usd_micros in flip.quotas_usd_micros.items()
            ),
            *noted,
            _expiry(entry),
        ),
        attr(_LABEL).absent() | attr(_INDEX).absent() | attr(_INDEX).lt(flip.index),
    )


def is_change(entry: activity.Flip) -> bool:
    """Whether it changes the recommended label."""
    return entry.from_label != entry.to_label


def comeback_update(key: Key, comeback: Comeback, version: int, entry: activity.Flip) -> Update:
    """Record a comeback or its end, unless another one, or a new flip of the label, came first."""
    known = attr(_COMEBACK_VERSION)
    stored = {name: getattr(comeback, name) for name in _COMEBACK_FIELDS}
    same_version = known.eq(version) if version else known.absent()
    return Update(
        STICKY_STATE,
        key,
        (
            Set(_COMEBACK + comeback.label, stored),
            Set(_COMEBACK_VERSION, version + 1),
            *_history_actions("comeback", version + 1, entry),
        ),
        same_version & attr(_GIVEN_UP_QUOTA + comeback.label).eq(comeback.quota_usd_micros),
    )


def override_version(item: Mapping[str, Any] | None) -> int:
    """How many override commands the item has seen."""
    if item is None:
        return 0
    return TypedItem(STICKY_STATE, item).whole(_OVERRIDE_VERSION, 0)


def override_update(
    key: Key, label: ModelLabel, incarnation: str, version: int, entry: activity.Flip
) -> Update:
    """Set or replace the override, unless a newer command came first."""
    return _command(
        key,
        version,
        entry,
        Set(_OVERRIDE, label),
        Set(_OVERRIDE_INCARNATION, incarnation),
        Set(_OVERRIDE_ACTIVATED, entry.at_ms // 1000),
    )


def clear_update(key: Key, item: Mapping[str, Any] | None, entry: activity.Flip) -> Update:
    """The write that removes the item's override, unless there was a newer command."""
    gone = (_OVERRIDE, _OVERRIDE_ACTIVATED, _OVERRIDE_INCARNATION)
    return _command(key, override_version(item), entry, *map(Remove, gone))


def history_from(item: Mapping[str, Any]) -> list[activity.Flip]:
    """Every flip and override in the item, newest first; unreadable ones are reported."""
    found = []
    for name, data in item.items():
        if name.startswith(_HISTORY):
            try:
                found.append(decode_flip(data))
            except (msgspec.MsgspecError, TypeError) as error:
                TypedItem(STICKY_STATE, item).report_unreadable(f"{name} is no flip: {error}")
    return sorted(found, key=lambda flip: flip.at_ms, reverse=True)


def history_query(client: Client, first_day: str, last_day: str) -> Query:
    """The items of a client in these days, both included."""
    first, last = override_key(client, first_day), override_key(client, last_day)
    return Query(STICKY_STATE, first.pk, first=first.sk or "", last=last.sk or "")


def flip_marker_put(org_id: str, app_id: str | None, day: str) -> Put:
    """Mark a day of a client on which something changes."""
    began_epoch = (date_of(day) - date_of("19700101")).days * _SECS_PER_DAY
    key = Key(f"FLIPS#{org_id}", f"{day}#{app_id or ''}")
    expires = began_epoch + (KEPT_DAYS + 3) * _SECS_PER_DAY
    return Put(ACTIVITY, {**key.attributes, EXPIRY: expires})


def flip_markers_query(org_id: str, first_day: str, last_day: str, after: str) -> Query:
    """The markers of an organisation in these days, both included, newest first."""
    return Query(
        ACTIVITY,
        f"FLIPS#{org_id}",
        first=first_day,
        last=f"{last_day}$",  # which sorts after every suffix of the day
        after=after,
        limit=100,
        descending=True,
    )


def flip_marker_from(item: Mapping[str, Any]) -> tuple[str, str | None]:
    """The day and the app of a marker."""
    day, _, app_id = str(item["SK"]).partition("#")
    return day, app_id or None


def _command(key: Key, version: int, entry: activity.Flip, *actions: Action) -> Update:
    """The next command after that version: applied once, and refused when it comes late."""
    known = attr(_OVERRIDE_VERSION)
    return Update(
        STICKY_STATE,
        key,
        (
            *actions,
            Set(_OVERRIDE_VERSION, version + 1),
            *_history_actions("override", version + 1, entry),
        ),
        known.eq(version) if version else known.absent(),
    )


def _history_actions(kind: str, number: int, entry: activity.Flip) -> tuple[Action, ...]:
    """Record a change under its number; the oldest of its kind is removed."""
    noted, oldest = Set(f"{_HISTORY}{kind}_{number}", encode_event(entry)), number - HISTORY_KEPT
    forgotten = (Remove(f"{_HISTORY}{kind}_{oldest}"),) if oldest > 0 else ()
    return (noted, *forgotten, _expiry(entry))


def _expiry(entry: activity.Flip) -> Action:
    return Set(EXPIRY, _expires_at_epoch(entry.until_ms))


def _expires_at_epoch(day_ends_at_ms: int) -> int:
    return -(-day_ends_at_ms // 1000) + KEPT_DAYS * _SECS_PER_DAY
