"""Alerts in the store: keys, codec, and the writes that decide and deliver them.

In the table Alerts, where ``owner`` is ``ORG#{org}@{life}`` or ``DEPLOYMENT``:

- ``{owner}#KEYS`` / digest of an identity: this was decided, as that alert
- ``{owner}`` / id: an alert, its body, and its state at each channel
- ``LIST`` / id: the owner of that alert, for lists over all owners
- ``OUTBOX`` / ``{owner}#{channel}``: a channel's queue: its length, next attempt and lease
- ``{owner}#TO#{channel}`` / id: that alert waits for this channel
- ``CLAIMS`` / task: the last claimed day of a daily task

An alert, its key, its line in the list and its queue entries are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.alerts.alert import (
    Alert,
    AlertKind,
    DeliveryState,
    Owner,
    joined_state,
    owner_from,
)
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Delete,
    Item,
    Key,
    Put,
    Query,
    Remove,
    Set,
    TypedItem,
    Update,
    Write,
    attr,
)
from pricekeeper.storage.tables import ALERTS
from pricekeeper.storage.values import EXPIRY

LIST: Final = "LIST"
OUTBOX: Final = "OUTBOX"
KEPT_SECS: Final = 90 * 86_400
KEY_KEPT_SECS: Final = 7 * 86_400
"""After its finding can last be found; records may come late."""
PENDING_MAX: Final = 100

_ALERT, _KIND, _BODY, _OWNER, _DELIVERY = "alert_id", "kind", "body", "owner", "to:"
_OF_ORG: Final = "org/"
_PENDING, _DUE, _FAILURES, _OLDEST = "pending", "due_ms", "failures", "oldest_ms"
_LEASE, _LEASED_UNTIL = "lease", "leased_until_ms"


class Receiver(NamedTuple):
    """A channel that an alert goes to."""

    owner: Owner
    name: str

    @property
    def key(self) -> str:
        return f"{self.owner.key}#{self.name}"

    @property
    def attribute(self) -> str:
        """The attribute of an alert with its state at this channel."""
        return f"{_DELIVERY}{'' if self.owner.org_id is None else _OF_ORG}{self.name}"


class Delivery(msgspec.Struct, frozen=True):
    """The state of an alert at a channel."""

    channel: str
    """With the prefix ``org/`` if it is the organisation's own."""
    state: DeliveryState
    at_ms: int | None = None
    error: str | None = None


class StoredAlert(NamedTuple):
    """An alert with its deliveries."""

    id: str
    owner: Owner
    kind: AlertKind
    body: bytes
    """JSON, the same bytes for every channel and attempt."""
    deliveries: tuple[Delivery, ...] = ()

    def for_its_organisation(self) -> StoredAlert:
        own = [
            msgspec.structs.replace(one, channel=one.channel.removeprefix(_OF_ORG))
            for one in self.deliveries
            if one.channel.startswith(_OF_ORG)
        ]
        return self._replace(deliveries=tuple(own))

    @property
    def state(self) -> DeliveryState:
        return joined_state([delivery.state for delivery in self.deliveries])


class Queued(NamedTuple):
    """An alert that waits for a channel."""

    receiver: Receiver
    owner: Owner
    """Of the alert."""
    alert_id: str

    @property
    def key(self) -> Key:
        return alert_key(self.owner, self.alert_id)


class Waiting(msgspec.Struct, frozen=True):
    """A channel with a queue."""

    key: str = msgspec.field(name="SK")
    pending: int = 0
    due_ms: int = 0
    failures: int = 0
    oldest_ms: int | None = None
    """Of the oldest alert that could not be delivered."""
    leased_until_ms: int = 0

    @property
    def receiver(self) -> Receiver:
        owner, _, name = self.key.rpartition("#")  # names of channels contain no #
        return Receiver(owner_from(owner), name)


def key_key(owner: Owner, digest: str) -> Key:
    """The key of a decision."""
    return Key(f"{owner.key}#KEYS", digest)


def alert_key(owner: Owner, alert_id: str) -> Key:
    """The key of an alert."""
    return Key(owner.key, alert_id)


def decision_writes(
    alert: Alert, body: bytes, receivers: Iterable[Receiver], full: Iterable[Receiver]
) -> list[Write]:
    """Decide an alert, unless it was decided, and queue it for its channels.

    The first write is refused if it was decided. Three writes are followed by two per receiver, the
    second of which is refused if the channel is ``full``.
    """
    finding, at_epoch = alert.finding, alert.at_ms // 1000
    expires = at_epoch + KEPT_SECS
    lasts = max(finding.lasts_until_ms // 1000, at_epoch) + KEY_KEPT_SECS
    key = key_key(finding.owner, finding.digest).attributes
    own = alert_key(finding.owner, alert.id).attributes
    item: Item = {**own, _KIND: finding.kind.value, _BODY: body, EXPIRY: expires}
    receivers = list(receivers)
    item |= {one.attribute: {"state": DeliveryState.PENDING.value} for one in receivers}
    item |= {one.attribute: {"state": DeliveryState.UNSENT.value} for one in full}
    writes: list[Write] = [
        Put(ALERTS, {**key, _ALERT: alert.id, EXPIRY: lasts}, ITEM_ABSENT),
        Put(ALERTS, item),
        Put(ALERTS, {"PK": LIST, "SK": alert.id, _OWNER: finding.owner.key, EXPIRY: expires}),
    ]
    has_room = attr(_PENDING).absent() | attr(_PENDING).lt(PENDING_MAX)
    for one in receivers:
        entry: Item = {"PK": _queue(one), "SK": alert.id, _OWNER: finding.owner.key}
        writes.append(Put(ALERTS, entry))
        writes.append(Update(ALERTS, outbox_key(one), (Add(_PENDING, 1),), has_room))
    return writes


def claim_update(what: str, day: str) -> Update:
    """Claim a task for a day, unless that day or a later one is claimed."""
    return Update(
        ALERTS, Key("CLAIMS", what), (Set("day", day),), attr("day").absent() | attr("day").lt(day)
    )


def outbox_key(receiver: Receiver) -> Key:
    """The key of a channel's queue."""
    return Key(OUTBOX, receiver.key)


def waiting_from(item: Mapping[str, Any]) -> Waiting:
    """Read a queue."""
    return TypedItem(ALERTS, item).convert(Waiting)


def lease_update(receiver: Receiver, lease: str, now_ms: int, until_ms: int) -> Update:
    """Take the lease of a channel, if it is free and the channel is due."""
    is_due = attr(_DUE).absent() | attr(_DUE).le(now_ms)
    is_free = attr(_LEASED_UNTIL).absent() | attr(_LEASED_UNTIL).le(now_ms)
    actions = (Set(_LEASE, lease), Set(_LEASED_UNTIL, until_ms))
    return Update(ALERTS, outbox_key(receiver), actions, ITEM_EXISTS & is_due & is_free)


def release_update(
    receiver: Receiver, lease: str, *, due_ms: int, failures: int, oldest_ms: int | None
) -> Update:
    """Release the lease, and set when the channel is due."""
    oldest = Remove(_OLDEST) if oldest_ms is None else Set(_OLDEST, oldest_ms)
    actions = (Remove(_LEASE), Remove(_LEASED_UNTIL), Set(_DUE, due_ms), Set(_FAILURES, failures))
    return Update(ALERTS, outbox_key(receiver), (*actions, oldest), attr(_LEASE).eq(lease))


def emptied_delete(receiver: Receiver) -> Delete:
    """Remove the queue, if it is still empty."""
    return Delete(ALERTS, outbox_key(receiver), attr(_PENDING).le(0))


def queue_query(receiver: Receiver, limit: int, after: str = "") -> Query:
    """Query the alerts that wait for a channel, oldest first."""
    return Query(ALERTS, _queue(receiver), after=after, limit=limit)


def queued_from(receiver: Receiver, item: Mapping[str, Any]) -> Queued:
    """Read an alert that waits for a channel."""
    typed = TypedItem(ALERTS, item)
    return Queued(receiver, owner_from(typed.text(_OWNER)), typed.text("SK"))


def settle_writes(
    queued: Queued, state: DeliveryState, at_ms: int, error: str | None
) -> list[Write]:
    """Remove an alert from a channel's queue, and record its state there.

    The first write is refused if another instance did this, the last if the alert has expired.
    """
    receiver = queued.receiver
    settled: Item = {"state": state.value, "at_ms": at_ms}
    if error is not None:
        settled["error"] = error
    return [
        Delete(ALERTS, Key(_queue(receiver), queued.alert_id), ITEM_EXISTS),
        Update(ALERTS, outbox_key(receiver), (Add(_PENDING, -1),)),
        Update(ALERTS, queued.key, (Set(receiver.attribute, settled),), ITEM_EXISTS),
    ]


def alert_from(item: Mapping[str, Any]) -> StoredAlert:
    """Read an alert."""
    typed = TypedItem(ALERTS, item)
    kind, body = typed.text(_KIND), item.get(_BODY)
    if kind not in set(AlertKind) or not isinstance(body, bytes):
        raise typed.report_unreadable("it is no alert")
    deliveries = [_delivery(typed, name) for name in sorted(item) if name.startswith(_DELIVERY)]
    return StoredAlert(
        typed.text("SK"), owner_from(typed.text("PK")), AlertKind(kind), body, tuple(deliveries)
    )


def _delivery(typed: TypedItem, name: str) -> Delivery:
    stored = typed.mapping(name)
    try:
        return msgspec.convert({**stored, "channel": name.removeprefix(_DELIVERY)}, Delivery)
    except msgspec.ValidationError as error:
        raise typed.report_unreadable(f"{name} can't be read: {error}") from error


def listed_owner(item: Mapping[str, Any]) -> Owner:
    """The owner of the alert in a line of the list."""
    return owner_from(TypedItem(ALERTS, item).text(_OWNER))


def _queue(receiver: Receiver) -> str:
    return f"{receiver.owner.key}#TO#{receiver.name}"
