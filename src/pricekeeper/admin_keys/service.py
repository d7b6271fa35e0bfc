"""Admin keys: create, list, rotate, delete, and recognise one that is shown.

A key is shown once, in the answer that makes it, and rests as a hash under the pepper. What ends a
key (its deletion, a rotation, the end of a grace, its expiry) holds at once on the instance that
did it and within `KEY_AGE_MS_MAX` on every other, for reads. Before a change the key is read again
(`http.gate`). Expiry and grace are looked at on each request, so they hold everywhere at their
second. If the store can't be read, no key opens.

Every change is made with its entry in the audit trail, which also says after a lost reply whether
it was made. Where that can't be seen, `OutcomeUnknownError` goes to the caller: a key that was made
and not seen can be deleted, a rotation made again, a deletion repeated.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Final

import structlog

from pricekeeper.admin_keys import items
from pricekeeper.admin_keys.cache import KeyCache
from pricekeeper.admin_keys.changes import key_created, key_deleted, key_rotated
from pricekeeper.admin_keys.items import StoredKey
from pricekeeper.admin_keys.key import AdminKey, is_key_id, key_id_of, mint_key, new_key_id
from pricekeeper.admin_keys.listing import KeyPage, list_keys, list_roots
from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import NO_ORG, Attribution, Coverage, Role
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.concurrency import SingleFlight
from pricekeeper.credentials.peppers import Peppers
from pricekeeper.credentials.secret import Entropy, Secret
from pricekeeper.errors import (
    ConditionFailedError,
    ConflictError,
    ContendedError,
    NotFoundError,
    StoreError,
)
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Action,
    Delete,
    Put,
    Set,
    Store,
    Update,
    Write,
    attr,
)
from pricekeeper.storage.tables import CONFIG

LAST_USED_SECS: Final = 600
"""How much older than the last use the moment may be that is written down: one write a key."""
_SECS_PER_HOUR: Final = 3_600

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key with its text, for the one answer that carries it."""

    key: AdminKey
    text: Secret


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A key that somebody has shown the right text of, and whether that counts still."""

    key: AdminKey
    counts: bool


class AdminKeys:
    """The admin keys in one store. Keys that a caller does not cover do not exist for it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        peppers: Peppers,
        *,
        trail: AuditTrail | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._clock = clock
        self._peppers = peppers
        self._trail = trail or AuditTrail(store, clock)
        self._entropy = entropy
        self._cache = KeyCache(clock)
        self._reads: SingleFlight[tuple[int, str], StoredKey | None]
        self._reads = SingleFlight("pricekeeper-admin-key")

    async def create(
        self,
        name: str,
        role: Role,
        coverage: Coverage,
        expires_at_epoch: int | None,
        by: Attribution,
    ) -> IssuedKey:
        """Make a key that is no greater than the asking one; it is shown only this once.

        One that does not say when it expires ends with the asking one.
        """
        require_trusted_time(self._clock)
        if expires_at_epoch is None and by.authority is not None:
            expires_at_epoch = by.authority.expires_at_epoch
        key = AdminKey(
            key_id=new_key_id(self._clock.now_ms(), self._entropy),
            name=name,
            role=role,
            coverage=coverage,
            created_at_epoch=self._now_epoch(),
            created_by=by.actor,
            expires_at_epoch=expires_at_epoch,
        )
        text = mint_key(key, by, self._entropy)
        item = items.new_item(key, self._hash(key.key_id, text))
        try:
            await self._apply(by, key_created(key), key.key_id, Put(CONFIG, item, ITEM_ABSENT))
        except ConditionFailedError as failure:
            raise ContendedError("another key was made at this moment, with this id") from failure
        _log.info("admin_key_created", key_id=key.key_id, role=key.role, actor=by.actor)
        return IssuedKey(key, text)

    async def rotate(self, key_id: str, grace_period_hours: int, by: Attribution) -> IssuedKey:
        """Give the key another text; the one in use counts until the grace ends.

        `NotPermittedError` if the key is greater than the asking one, and `ConflictError` if
        somebody else has rotated it at the same moment.
        """
        require_trusted_time(self._clock)
        stored, now_epoch = await self._read_within(key_id, by), self._now_epoch()
        text = mint_key(stored.key, by, self._entropy)
        hashed = self._hash(key_id, text)
        grace_secs = grace_period_hours * _SECS_PER_HOUR
        actions = items.rotation_actions(stored, hashed, now_epoch, grace_secs)
        condition = items.same_rotation(stored)
        operation = Update(CONFIG, items.item_key(key_id), actions, condition)
        try:
            await self._apply(by, key_rotated(stored.key, grace_period_hours), key_id, operation)
        except ConditionFailedError as failure:
            await self._read_within(key_id, by)  # it may have been deleted
            message = "somebody else has rotated it at the same moment"
            raise ConflictError("key_id", message) from failure
        _log.info("admin_key_rotated", key_id=key_id, actor=by.actor)
        ends_at_epoch = now_epoch + grace_secs if grace_secs else None
        key = replace(stored.key, rotated_at_epoch=now_epoch, old_text_ends_at_epoch=ends_at_epoch)
        return IssuedKey(key, text)

    async def delete(self, key_id: str, by: Attribution) -> None:
        """End the key for good."""
        stored = await self._read_within(key_id, by)
        operation = Delete(CONFIG, items.item_key(key_id), ITEM_EXISTS)
        try:
            await self._apply(by, key_deleted(stored.key), key_id, operation)
        except ConditionFailedError as failure:
            raise NotFoundError(f"admin key {key_id}") from failure
        _log.info("admin_key_deleted", key_id=key_id, actor=by.actor)

    async def list_keys(self, within: Coverage, after: str | None, limit: int) -> KeyPage:
        """A page of keys in the order in which they were made: one query."""
        return await list_keys(self._store, within, after, limit)

    async def list_roots(self) -> list[AdminKey]:
        """The keys that administer the whole deployment, also those that have expired."""
        return await list_roots(self._store)

    async def find(self, text: str, *, fresh: bool = False) -> PresentedKey | None:
        """The key that this is a text of, if it is one's: at most one read, mostly none.

        A text that is not among those that are remembered may be new: then the key is read again.
        ``fresh`` reads it in any case.
        """
        key_id = key_id_of(text)
        if key_id is None:
            return None
        stored = None if fresh else self._cache.get(key_id)
        match = self._match(stored, key_id, text)
        if match is None:
            flight = (self._cache.changes, key_id)
            stored = await self._reads.run(flight, lambda: self._read(key_id))
            match = self._match(stored, key_id, text)
        if stored is None or match is None:
            return None
        now_epoch, is_current = self._now_epoch(), match == items.HASH
        in_force = is_current or stored.previous_counts(now_epoch)
        if not in_force or stored.key.has_ended(now_epoch):
            return PresentedKey(stored.key, counts=False)
        await self._note_use(stored, text, now_epoch, is_current=is_current)
        return PresentedKey(stored.key, counts=True)

    def _match(self, stored: StoredKey | None, key_id: str, text: str) -> str | None:
        """The attribute whose hash is the text's, if one is.

        Two are compared whatever is there, so that the time taken tells nothing.
        """
        matched = None
        hashes = (None, None) if stored is None else (stored.previous_hash, stored.hash)
        for attribute, hashed in zip((items.PREVIOUS_HASH, items.HASH), hashes, strict=True):
            if self._peppers.matches(hashed, items.owner_of(key_id), text):
                matched = attribute
        return matched

    async def _note_use(
        self, stored: StoredKey, text: str, now_epoch: int, *, is_current: bool
    ) -> None:
        """Write down that the key was used, if that is due, and hash it anew if it has to be.

        The caller is let in whether this works or not; it is tried again when the key is read
        the next time.
        """
        key_id, attribute = stored.key.key_id, items.HASH if is_current else items.PREVIOUS_HASH
        known = self._cache.get(key_id)
        if known is not None and known.rotations == stored.rotations:
            stored = known  # another caller of this moment may be noting it already
        hashed = stored.hash if is_current else stored.previous_hash or ""
        used_at_epoch = stored.used_at_epoch if is_current else stored.key.last_used_at_epoch
        is_due = used_at_epoch is None or now_epoch - used_at_epoch >= LAST_USED_SECS
        if not is_due and not self._peppers.is_outdated(hashed):
            return
        fresh = hashed
        if self._peppers.is_outdated(hashed):
            fresh = self._peppers.hash(items.owner_of(key_id), text)
        actions: list[Action] = [Set(items.LAST_USED_AT, now_epoch), Set(attribute, fresh)]
        noted = replace(stored, key=replace(stored.key, last_used_at_epoch=now_epoch))
        if is_current:
            actions.append(Set(items.USED_AT, now_epoch))
            noted = replace(noted, hash=fresh, used_at_epoch=now_epoch)
        else:
            noted = replace(noted, previous_hash=fresh)
        self._cache.replace(noted)  # before the write: one caller does it, however many come
        condition = attr(attribute).eq(hashed)
        operation = Update(CONFIG, items.item_key(key_id), tuple(actions), condition)
        try:
            await self._store.update(operation)
        except StoreError as error:
            _log.warning("admin_key_use_not_noted", key_id=key_id, error=error.code)

    async def _read(self, key_id: str) -> StoredKey | None:
        reading = self._cache.reading()
        item = await self._store.get(CONFIG, items.item_key(key_id))
        if item is None:
            return None
        stored = items.stored_key(item)
        self._cache.keep(stored, reading)
        return stored

    async def _read_within(self, key_id: str, by: Attribution) -> StoredKey:
        """The key as it is now, if the caller may know of it."""
        within = NO_ORG if by.authority is None else by.authority.coverage
        stored = await self._read(key_id) if is_key_id(key_id) else None
        if stored is None or not within.includes(stored.key.coverage):
            raise NotFoundError(f"admin key {key_id}")
        return stored

    async def _apply(self, by: Attribution, change: Change, key_id: str, operation: Write) -> None:
        try:
            await self._trail.write(by, change, operation)
        finally:
            self._cache.forget(key_id)

    def _hash(self, key_id: str, text: Secret) -> str:
        return self._peppers.hash(items.owner_of(key_id), text.reveal())

    def _now_epoch(self) -> int:
        return self._clock.now_ms() // 1000
