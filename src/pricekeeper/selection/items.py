"""Items of the StickyState table: one per client and day, each with two independent parts.

- The **fallback** of the schema document: ``active_model_label``, ``active_model_index``,
  ``reason``, ``previous_model_label``, ``activated_at_epoch``; and beside it
  ``given_up_model_labels``, a set that only grows, with ``given_up_quota.{label}``, the quota that
  a label had spent when it was last given up. It is in the item of the scope whose quotas
  count: the organisation's under ORG scope, the app's under APP scope.
- The **override**: ``override_model_label`` and ``override_activated_at_epoch``, in the item of
  the client it was set on, whatever the scope. ``override_incarnation`` is that client's: one
  that is deleted and created again on the same day has no override. ``override_version`` counts
  the commands that set and cleared it, and stays when it is cleared.

An item of the schema document with the reason ``MANUAL_OVERRIDE`` is an override too, in the
attributes of the fallback. It counts in every life of its client, since it names none.

Neither write touches the other's attributes, so an override and a flip that race both survive.
The day is in the key: the next day starts without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pricekeeper.selection.fallback import Flip, Override, Reason, StickyState
from pricekeeper.storage import Action, Add, Key, Remove, Set, TypedItem, Update, attr
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client
from pricekeeper.values import ModelLabel

EXPIRY_BUFFER_SECS: Final = 3600
"""How long an item outlives its day, so that a clock that lags still sees it."""

_LABEL: Final = "active_model_label"
_INDEX: Final = "active_model_index"
_REASON: Final = "reason"
_PREVIOUS: Final = "previous_model_label"
_ACTIVATED: Final = "activated_at_epoch"
_GIVEN_UP: Final = "given_up_model_labels"
_GIVEN_UP_QUOTA: Final = "given_up_quota."
_OVERRIDE: Final = "override_model_label"
_OVERRIDE_ACTIVATED: Final = "override_activated_at_epoch"
_OVERRIDE_INCARNATION: Final = "override_incarnation"
_OVERRIDE_VERSION: Final = "override_version"


def sticky_key(scope_key: str, day: str) -> Key:
    """The key of a scope's fallback."""
    return Key(scope_key, f"DAY#{day}")


def override_key(client: Client, day: str) -> Key:
    """The key of a client's override."""
    own = f"ORG#{client.org_id}"
    return sticky_key(own if client.app_id is None else f"{own}#APP#{client.app_id}", day)


def sticky_state(item: Mapping[str, Any] | None) -> StickyState | None:
    """The fallback in the item, if there is one.

    Only the label is required: other attributes may be missing. An attribute of another type
    makes the item unreadable.
    """
    if item is None:
        return None
    typed = TypedItem(STICKY_STATE, item)
    if _LABEL not in item or _is_override(item):
        return None
    given_up = typed.texts(_GIVEN_UP, None)
    label = ModelLabel(typed.text(_LABEL))
    return StickyState(
        active_label=label,
        active_index=typed.whole(_INDEX, 0),
        previous_label=ModelLabel(typed.text(_PREVIOUS, "")),
        activated_at_epoch=typed.whole(_ACTIVATED, 0),
        given_up=None if given_up is None else frozenset(map(ModelLabel, given_up)),
        given_up_at_usd_micros={
            ModelLabel(name.removeprefix(_GIVEN_UP_QUOTA)): typed.whole(name)
            for name in item
            if name.startswith(_GIVEN_UP_QUOTA)
        },
    )


def override(client: Client, incarnation: str, item: Mapping[str, Any] | None) -> Override | None:
    """The override in the client's item, if there is one that was set in this life of it."""
    if item is None:
        return None
    typed = TypedItem(STICKY_STATE, item)
    if _OVERRIDE in item:
        if typed.text(_OVERRIDE_INCARNATION, "") != incarnation:
            return None
        label = ModelLabel(typed.text(_OVERRIDE))
        return Override(client, label, typed.whole(_OVERRIDE_ACTIVATED, 0))
    if _LABEL in item and _is_override(item):
        return Override(client, ModelLabel(typed.text(_LABEL)), typed.whole(_ACTIVATED, 0))
    return None


def _is_override(item: Mapping[str, Any]) -> bool:
    """Whether the label in the item is an operator's override and not a fallback."""
    return item.get(_REASON) == Reason.MANUAL_OVERRIDE.value


def flip_update(key: Key, flip: Flip, now_ms: int, day_ends_at_ms: int) -> Update:
    """The write that records a flip, unless another instance has recorded that one or a later one.

    Once it is applied, its own condition is false. So a store may send it again, and a copy that
    arrives late is refused.
    """
    return Update(
        STICKY_STATE,
        key,
        (
            Set(_LABEL, flip.label),
            Set(_INDEX, flip.index),
            Set(_REASON, Reason.QUOTA_EXCEEDED.value),
            Set(_PREVIOUS, flip.previous_label),
            Set(_ACTIVATED, now_ms // 1000),
            Add(_GIVEN_UP, flip.given_up),
            *(
                Set(_GIVEN_UP_QUOTA + label, quota_usd_micros)
                for label, quota_usd_micros in flip.quotas_usd_micros.items()
            ),
            _expiry(day_ends_at_ms),
        ),
        attr(_LABEL).absent()
        | attr(_INDEX).absent()
        | attr(_INDEX).lt(flip.index)
        | attr(_REASON).eq(Reason.MANUAL_OVERRIDE.value),
    )


def override_version(item: Mapping[str, Any] | None) -> int:
    """How many commands about an override the item has seen."""
    if item is None:
        return 0
    version: int = TypedItem(STICKY_STATE, item).whole(_OVERRIDE_VERSION, 0)
    return version


def override_update(
    key: Key,
    label: ModelLabel,
    incarnation: str,
    version: int,
    *,
    now_ms: int,
    day_ends_at_ms: int,
) -> Update:
    """The write that sets or replaces the override, unless there was a newer command."""
    return _command(
        key,
        version,
        Set(_OVERRIDE, label),
        Set(_OVERRIDE_INCARNATION, incarnation),
        Set(_OVERRIDE_ACTIVATED, now_ms // 1000),
        _expiry(day_ends_at_ms),
    )


def clear_update(key: Key, item: Mapping[str, Any] | None) -> Update:
    """The write that removes the item's override, unless there was a newer command."""
    gone = [_OVERRIDE, _OVERRIDE_ACTIVATED, _OVERRIDE_INCARNATION]
    if item is not None and _is_override(item):
        gone += [_LABEL, _INDEX, _REASON, _PREVIOUS, _ACTIVATED]
    return _command(key, override_version(item), *map(Remove, gone))


def _command(key: Key, version: int, *actions: Action) -> Update:
    """The next command after that version: applied once, and refused when it comes late."""
    known = attr(_OVERRIDE_VERSION)
    return Update(
        STICKY_STATE,
        key,
        (*actions, Set(_OVERRIDE_VERSION, version + 1)),
        known.eq(version) if version else known.absent(),
    )


def _expiry(day_ends_at_ms: int) -> Action:
    return Set("expires_at_epoch", -(-day_ends_at_ms // 1000) + EXPIRY_BUFFER_SECS)
