"""Items of the StickyState table: one per client and day, with two things side by side in it.

- The **fallback** of the schema document: ``active_model_label``, ``active_model_index``,
  ``reason``, ``previous_model_label``, ``activated_at_epoch``; and beside it
  ``given_up_model_labels``, a set that only grows. It is in the item of the scope whose quotas
  count: the organisation's under ORG scope, the app's under APP scope.
- The **override**: ``override_model_label`` and ``override_activated_at_epoch``, in the item of
  the client it was set on, whatever the scope. ``override_incarnation`` is that client's: one
  that is deleted and created again on the same day has no override. ``override_version`` counts
  the commands that set and cleared it, and stays when it is cleared.

Neither write touches the other's attributes, so an override and a flip that race both survive.
The day is in the key: the next day starts without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pricekeeper.selection.fallback import Flip, Override, Reason, StickyState
from pricekeeper.storage import Action, Add, Key, Remove, Set, Update, attr
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client
from pricekeeper.values import ModelLabel

EXPIRY_BUFFER_SECS: Final = 3600
"""How long an item outlives its day, so that a clock that lags still sees it."""

_LABEL: Final = "active_model_label"
_INDEX: Final = "active_model_index"
_GIVEN_UP: Final = "given_up_model_labels"
_OVERRIDE: Final = "override_model_label"
_OVERRIDE_ACTIVATED: Final = "override_activated_at_epoch"
_OVERRIDE_INCARNATION: Final = "override_incarnation"
_OVERRIDE_VERSION: Final = "override_version"


def sticky_key(scope_key: str, day: str) -> Key:
    """Where the fallback of a scope is."""
    return Key(scope_key, f"DAY#{day}")


def override_key(client: Client, day: str) -> Key:
    """Where the override of a client is."""
    own = f"ORG#{client.org_id}"
    return sticky_key(own if client.app_id is None else f"{own}#APP#{client.app_id}", day)


def sticky_state(item: Mapping[str, Any] | None) -> StickyState | None:
    """The fallback in the item, if there is one."""
    if item is None or _LABEL not in item:
        return None
    given_up = item.get(_GIVEN_UP)
    return StickyState(
        active_label=ModelLabel(item[_LABEL]),
        active_index=item[_INDEX],
        previous_label=ModelLabel(item["previous_model_label"]),
        activated_at_epoch=item["activated_at_epoch"],
        given_up=None if given_up is None else frozenset(map(ModelLabel, given_up)),
    )


def override(client: Client, incarnation: str, item: Mapping[str, Any] | None) -> Override | None:
    """The override in the client's item, if there is one that was set in this life of it."""
    if item is None or _OVERRIDE not in item or item[_OVERRIDE_INCARNATION] != incarnation:
        return None
    return Override(client, ModelLabel(item[_OVERRIDE]), item[_OVERRIDE_ACTIVATED])


def flip_update(key: Key, flip: Flip, now_ms: int, day_ends_at_ms: int) -> Update:
    """Move the fallback forward, if nobody has moved it that far.

    Applied once, its own condition is false: a store may send it again, and a copy that
    arrives late is refused.
    """
    return Update(
        STICKY_STATE,
        key,
        (
            Set(_LABEL, flip.label),
            Set(_INDEX, flip.index),
            Set("reason", Reason.QUOTA_EXCEEDED.value),
            Set("previous_model_label", flip.previous_label),
            Set("activated_at_epoch", now_ms // 1000),
            Add(_GIVEN_UP, flip.given_up),
            _expiry(day_ends_at_ms),
        ),
        attr(_LABEL).absent() | attr(_INDEX).lt(flip.index),
    )


def override_version(item: Mapping[str, Any] | None) -> int:
    """How many commands about an override the item has seen."""
    version: int = 0 if item is None else item.get(_OVERRIDE_VERSION, 0)
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
    """Set the override, in place of one that may be there, unless there was a newer command."""
    return _command(
        key,
        version,
        Set(_OVERRIDE, label),
        Set(_OVERRIDE_INCARNATION, incarnation),
        Set(_OVERRIDE_ACTIVATED, now_ms // 1000),
        _expiry(day_ends_at_ms),
    )


def clear_update(key: Key, version: int) -> Update:
    """Take the override away, unless there was a newer command."""
    gone = (Remove(_OVERRIDE), Remove(_OVERRIDE_ACTIVATED), Remove(_OVERRIDE_INCARNATION))
    return _command(key, version, *gone)


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
