"""Reads and changes the channels of organisations and of the deployment.

All channels of an owner are in one item of Config, ``ORG#{org}`` / ``ALERTS`` or ``ALERTS`` /
``ALERTS``, so a condition bounds their number. An organisation's item belongs to one life of it.
Addresses are sealed: without the pepper, channels can only be listed. A change replaces only the
item that was read, and is written with its audit entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import DEPLOYMENT, Finding, Owner
from pricekeeper.alerts.channel import (
    CHANNELS_MAX,
    Channel,
    ChannelAddress,
    ChannelRequest,
    address_of,
    is_channel_name,
    shown_address,
)
from pricekeeper.alerts.items import Receiver
from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.clock import Clock
from pricekeeper.credentials import Sealer
from pricekeeper.errors import (
    ConflictError,
    ContendedError,
    DeliveryError,
    InvalidValueError,
    NotFoundError,
    TransactionCancelledError,
)
from pricekeeper.storage import ITEM_ABSENT, Check, Item, Key, Put, Store, TypedItem, Write, attr
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, Tenants
from pricekeeper.tenants.items import (
    ALERTS_SORT_KEY,
    ORG_INCARNATION,
    alerts_key,
    config_key,
    same_life,
)
from pricekeeper.values import OrgId

ATTEMPTS_MAX: Final = 8
_CHANNELS, _VERSION = "channels", "version"
_OF_DEPLOYMENT: Final = Key(ALERTS_SORT_KEY, ALERTS_SORT_KEY)


class _StoredChannel(Channel, frozen=True, kw_only=True):
    sealed: str


class _StoredChannels(NamedTuple):
    """The channels of an owner, and their version."""

    channels: dict[str, _StoredChannel]
    version: int


class OpenChannel(NamedTuple):
    """A channel with its address."""

    channel: Channel
    address: ChannelAddress


class SavedChannel(NamedTuple):
    """A channel after its change."""

    channel: Channel
    created: bool


class Channels:
    """Reads and changes channels; without a sealer it only lists them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tenants: Tenants,
        *,
        trail: AuditTrail | None = None,
        sealer: Sealer | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._trail = trail or AuditTrail(store, clock)
        self._tenants = tenants
        self._sealer = sealer
        self.guard = guard or Guard()

    async def find_owner(self, org_id: OrgId | None) -> Owner:
        if org_id is None:
            return DEPLOYMENT
        record = await self._tenants.read_record(Client(org_id))
        return Owner(org_id, record.life.incarnation)

    async def read_all(self, owner: Owner) -> list[Channel]:
        stored = await self._read(owner)
        return [stored.channels[name] for name in sorted(stored.channels)]

    async def find_receivers(self, finding: Finding) -> list[Receiver]:
        """The channels that a finding goes to: its owner's and the deployment's. One read."""
        owners = [finding.owner, *([] if finding.owner == DEPLOYMENT else [DEPLOYMENT])]
        items = await self._store.batch_get([(CONFIG, _key(owner)) for owner in owners])
        return [
            Receiver(owner, name)
            for owner, item in zip(owners, items, strict=True)
            for name, stored in sorted(_stored_from(owner, item).channels.items())
            if stored.takes(finding.kind)
        ]

    async def open(self, receiver: Receiver) -> OpenChannel | None:
        """``None`` if the channel was removed."""
        found = (await self._read(receiver.owner)).channels.get(receiver.name)
        if found is None:
            return None
        return OpenChannel(found, self._unseal(receiver, found.sealed))

    async def put(
        self, owner: Owner, name: str, request: ChannelRequest, by: Attribution
    ) -> SavedChannel:
        if not is_channel_name(name):
            raise InvalidValueError("channel", "must be 1 to 32 of a-z 0-9 -, and not begin with -")
        for _ in range(ATTEMPTS_MAX):
            stored = await self._read(owner)
            before = stored.channels.get(name)
            if before is None and len(stored.channels) >= CHANNELS_MAX:
                raise ConflictError("channel", f"there are {CHANNELS_MAX} already; remove one")
            made = self._make(Receiver(owner, name), request, before)
            change = _change(owner, name, "put", before, made)
            if await self._write(owner, stored, {**stored.channels, name: made}, change, by):
                return SavedChannel(made, created=before is None)
        raise ContendedError("others kept changing these channels")

    async def remove(self, owner: Owner, name: str, by: Attribution) -> None:
        """Alerts that wait for the channel are given up. Raises `NotFoundError`."""
        for _ in range(ATTEMPTS_MAX):
            stored = await self._read(owner)
            if name not in stored.channels:
                raise NotFoundError("channel")
            left = {other: one for other, one in stored.channels.items() if other != name}
            change = _change(owner, name, "delete", stored.channels[name], None)
            if await self._write(owner, stored, left, change, by):
                return
        raise ContendedError("others kept changing these channels")

    async def note_trial(self, owner: Owner, name: str, by: Attribution) -> None:
        await self._trail.apply(by, _change(owner, name, "test", None, None), ())

    def _make(
        self, receiver: Receiver, request: ChannelRequest, before: _StoredChannel | None
    ) -> _StoredChannel:
        known = None
        if before is not None and before.kind is request.kind:
            known = self._unseal(receiver, before.sealed)
        address = address_of(request, known, self.guard)
        text = msgspec.json.encode(address).decode()
        return _StoredChannel(
            receiver.name,
            request.kind,
            shown_address(request.kind, address),
            tuple(dict.fromkeys(request.kinds)),
            self._clock.now_ms() // 1000,
            sealed=self._require_sealer().seal(receiver.key, text),
        )

    def _unseal(self, receiver: Receiver, sealed: str) -> ChannelAddress:
        text = self._require_sealer().unseal(receiver.key, sealed)
        if text is None:
            raise DeliveryError("its address can't be read with this pepper: set the channel again")
        return msgspec.json.decode(text, type=ChannelAddress)

    def _require_sealer(self) -> Sealer:
        if self._sealer is None:
            raise DeliveryError("addresses of channels can't be read here: set the pepper")
        return self._sealer

    async def _read(self, owner: Owner) -> _StoredChannels:
        return _stored_from(owner, await self._store.get(CONFIG, _key(owner)))

    async def _write(
        self,
        owner: Owner,
        before: _StoredChannels,
        channels: Mapping[str, _StoredChannel],
        change: Change,
        by: Attribution,
    ) -> bool:
        """Replace the channels that were read; ``False`` if another caller was faster."""
        item: Item = {
            **_key(owner).attributes,
            _CHANNELS: msgspec.to_builtins(channels),
            _VERSION: before.version + 1,
            ORG_INCARNATION: owner.life,
        }
        same = attr(_VERSION).eq(before.version) & attr(ORG_INCARNATION).eq(owner.life)
        if not before.version:
            same = ITEM_ABSENT | attr(ORG_INCARNATION).ne(owner.life)
        writes: list[Write] = [Put(CONFIG, item, same)]
        if owner.org_id is not None:
            record = await self._tenants.read_record(Client(owner.org_id))
            if record.life.incarnation != owner.life:
                raise NotFoundError("org")
            org = config_key(Client(owner.org_id))
            writes.append(Check(CONFIG, org, same_life(record.life)))
        try:
            await self._trail.apply(by, change, writes)
        except TransactionCancelledError:
            return False
        return True


def _change(
    owner: Owner, name: str, verb: str, before: Channel | None, after: Channel | None
) -> Change:
    return Change(
        f"alert_channel.{verb}",
        f"alert-channel/{name}",
        owner.org_id,
        None if before is None else _facts(before),
        None if after is None else _facts(after),
    )


def _facts(channel: Channel) -> dict[str, Any]:
    kinds = [kind.value for kind in channel.kinds]
    return {"kind": channel.kind.value, "address": channel.shown, "kinds": kinds}


def _key(owner: Owner) -> Key:
    return _OF_DEPLOYMENT if owner.org_id is None else alerts_key(Client(owner.org_id))


def _stored_from(owner: Owner, item: Mapping[str, Any] | None) -> _StoredChannels:
    if item is None or item.get(ORG_INCARNATION, "") != owner.life:
        return _StoredChannels({}, 0)
    typed = TypedItem(CONFIG, item)
    channels: dict[str, _StoredChannel] = {}
    for name, plain in typed.mapping(_CHANNELS).items():
        try:
            channels[name] = msgspec.convert(plain, _StoredChannel)
        except msgspec.ValidationError as error:
            raise typed.report_unreadable(f"the channel {name} can't be read") from error
    return _StoredChannels(channels, typed.whole(_VERSION, least=1))
