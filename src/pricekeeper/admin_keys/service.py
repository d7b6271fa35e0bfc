"""Creates, lists, rotates, deletes and recognises admin keys.

A key's text is shown once and stored as a hash under the pepper. A deletion, a rotation and the end
of a grace take effect at once on this instance and within `KEY_AGE_MS_MAX` on others, for reads;
before a change the key is read again (`http.gate`). Expiry and grace are checked on each request.
Without the store, no key works.

Each change has its audit entry, which shows after a lost reply whether it was made. If that can't
be read, the caller gets `OutcomeUnknownError` and may repeat, or delete an unseen key.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

import structlog
from msgspec.structs import replace

from pricekeeper.admin_keys import items
from pricekeeper.admin_keys.items import StoredKey
from pricekeeper.admin_keys.key import AdminKey, is_key_id, key_id_of, mint_key, new_key_id
from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import NO_ORG, Attribution, Coverage, Role
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.concurrency import ReadCache, SingleFlight
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
    ListPage,
    Put,
    Query,
    Set,
    Store,
    Update,
    Write,
    attr,
    query_items,
    readable,
)
from pricekeeper.storage.tables import CONFIG

KEY_AGE_MS_MAX: Final = 30_000
KEYS_MAX: Final = 1_000
LAST_USED_SECS: Final = 600
_SECS_PER_HOUR: Final = 3_600

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key with its text, for the one answer that contains it."""

    key: AdminKey
    text: Secret


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A key with a right text, and whether that text is still valid."""

    key: AdminKey
    is_valid: bool


class AdminKeys:
    """The admin keys in one store. Callers see only keys within their coverage."""

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
        self._cache: ReadCache[str, StoredKey] = ReadCache(
            clock.monotonic_ms, KEY_AGE_MS_MAX, KEYS_MAX
        )
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
        """Make a key that is no greater than the asking one, with its expiry by default."""
        require_trusted_time(self._clock)
        if expires_at_epoch is None and by.authority is not None:
            expires_at_epoch = by.authority.expires_at_epoch
        key = AdminKey(
            key_id=new_key_id(self._clock.now_ms(), self._entropy),
            name=name,
            role=role,
            org_ids=coverage.org_ids,
            created_at_epoch=self._now_epoch(),
            created_by=by.actor,
            expires_at_epoch=expires_at_epoch,
        )
        text = mint_key(key, by, self._entropy)
        item = items.new_item(key, self._hash(key.key_id, text))
        try:
            change = _change(key, "create", after=_terms(key))
            await self._apply(by, change, key.key_id, Put(CONFIG, item, ITEM_ABSENT))
        except ConditionFailedError as failure:
            message = "another key with the same id was made at this moment"
            raise ContendedError(message) from failure
        _log.info("admin_key_created", key_id=key.key_id, role=key.role, actor=by.actor)
        return IssuedKey(key, text)

    async def rotate(self, key_id: str, grace_period_hours: int, by: Attribution) -> IssuedKey:
        """Give the key another text; the text in use stays valid until the grace ends.

        Raises `NotPermittedError` for a greater key, `ConflictError` if another request rotated it.
        """
        require_trusted_time(self._clock)
        stored, now_epoch = await self._read_within(key_id, by), self._now_epoch()
        text = mint_key(stored, by, self._entropy)
        hashed = self._hash(key_id, text)
        grace_secs = grace_period_hours * _SECS_PER_HOUR
        actions = items.rotation_actions(stored, hashed, now_epoch, grace_secs)
        condition = items.same_rotation(stored)
        operation = Update(CONFIG, items.item_key(key_id), actions, condition)
        try:
            change = _change(stored, "rotate", after={"grace_period_hours": grace_period_hours})
            await self._apply(by, change, key_id, operation)
        except ConditionFailedError as failure:
            await self._read_within(key_id, by)  # it may have been deleted
            message = "was rotated by another request at the same moment: rotate it again"
            raise ConflictError("key_id", message) from failure
        _log.info("admin_key_rotated", key_id=key_id, actor=by.actor)
        ends_at_epoch = now_epoch + grace_secs if grace_secs else None
        key = replace(stored, rotated_at_epoch=now_epoch, old_text_ends_at_epoch=ends_at_epoch)
        return IssuedKey(key, text)

    async def delete(self, key_id: str, by: Attribution) -> None:
        stored = await self._read_within(key_id, by)
        operation = Delete(CONFIG, items.item_key(key_id), ITEM_EXISTS)
        try:
            change = _change(stored, "delete", before=_terms(stored))
            await self._apply(by, change, key_id, operation)
        except ConditionFailedError as failure:
            raise NotFoundError(f"admin key {key_id}") from failure
        _log.info("admin_key_deleted", key_id=key_id, actor=by.actor)

    async def list_keys(
        self, within: Coverage, after: str | None, limit: int
    ) -> ListPage[AdminKey, str]:
        """List keys within that coverage, oldest first: one query. A page may be empty."""
        query = Query(CONFIG, items.PARTITION, after=after or "", limit=limit)
        page = await self._store.query(query)
        found = (readable(items.stored_key, item) for item in page.items)
        keys: list[AdminKey] = [
            key for key in found if key is not None and within.includes(key.coverage)
        ]
        return ListPage(keys, page.after or None)

    async def find(self, text: str, *, fresh: bool = False) -> PresentedKey | None:
        """Find the key of this text: at most one read, usually none; ``fresh`` always reads.

        A text that does not match the cached key may be new, so the key is read again.
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
        is_valid = in_force and not stored.has_ended(now_epoch)
        if is_valid:
            await self._note_use(stored, text, now_epoch, is_current=is_current)
        return PresentedKey(stored, is_valid)

    def _match(self, stored: StoredKey | None, key_id: str, text: str) -> str | None:
        matched = None
        hashes = (None, None) if stored is None else (stored.previous_hash, stored.hash)
        for attribute, hashed in zip((items.PREVIOUS_HASH, items.HASH), hashes, strict=True):
            if self._peppers.matches(hashed, items.owner_of(key_id), text):
                matched = attribute
        return matched

    async def _note_use(
        self, stored: StoredKey, text: str, now_epoch: int, *, is_current: bool
    ) -> None:
        """Record the use and renew an outdated hash, if due; a failure is ignored."""
        key_id, attribute = stored.key_id, items.HASH if is_current else items.PREVIOUS_HASH
        known = self._cache.get(key_id)
        is_known = known is not None and known.rotations == stored.rotations
        if known is not None and is_known:
            stored = known  # another caller may be writing it already
        hashed = stored.hash if is_current else stored.previous_hash or ""
        used_at_epoch = stored.used_at_epoch if is_current else stored.last_used_at_epoch
        is_due = used_at_epoch is None or now_epoch - used_at_epoch >= LAST_USED_SECS
        if not is_due and not self._peppers.is_outdated(hashed):
            return
        fresh = hashed
        if self._peppers.is_outdated(hashed):
            fresh = self._peppers.hash(items.owner_of(key_id), text)
        actions: list[Action] = [Set(items.LAST_USED_AT, now_epoch), Set(attribute, fresh)]
        if is_current:
            actions.append(Set(items.USED_AT, now_epoch))
            noted = replace(stored, hash=fresh, used_at_epoch=now_epoch)
        else:
            noted = replace(stored, previous_hash=fresh)
        if is_known:
            noted = replace(noted, last_used_at_epoch=now_epoch)
            self._cache.replace(key_id, noted)  # before the write, so that one caller makes it
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
        self._cache.keep(key_id, stored, reading)
        return stored

    async def _read_within(self, key_id: str, by: Attribution) -> StoredKey:
        within = NO_ORG if by.authority is None else by.authority.coverage
        stored = await self._read(key_id) if is_key_id(key_id) else None
        if stored is None or not within.includes(stored.coverage):
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


async def list_roots(store: Store) -> list[AdminKey]:
    """The keys for the whole deployment, also expired ones."""
    found = query_items(store, Query(CONFIG, items.PARTITION))
    keys = [readable(items.stored_key, item) async for item in found]
    return [key for key in keys if key and key.role is Role.ADMIN and key.coverage.is_all]


def _change(key: AdminKey, verb: str, **sides: dict[str, Any]) -> Change:
    """A change for the audit trail: in the chain of a key's only organisation, if it has one."""
    return Change(f"admin_key.{verb}", f"admin-key/{key.key_id}", key.coverage.one, **sides)


def _terms(key: AdminKey) -> dict[str, Any]:
    terms: dict[str, Any] = {"name": key.name, "role": key.role.value}
    if key.org_ids is not None:
        terms["org_ids"] = sorted(key.org_ids)
    if key.expires_at_epoch is not None:
        terms["expires_at_epoch"] = key.expires_at_epoch
    return terms
