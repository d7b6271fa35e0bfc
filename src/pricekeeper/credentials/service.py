"""Secrets of clients: issue, login, rotation with a grace, and revocation.

Registration and rotation issue a retrieval token, valid for ten minutes and one claim. A claim
mints a secret, returns it once and stores its hash; after a lost reply the caller needs a new
token. `Credentials.provision` writes a client and its token together, so the winner of a race
has a token that works.

This fails closed: no login or claim without the store. While time is in doubt, nothing is issued
(`ClockInDoubtError`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution, Permit, may_produce
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.credentials import items
from pricekeeper.credentials.items import Claimable
from pricekeeper.credentials.meter import CredentialsMeter
from pricekeeper.credentials.peppers import Peppers
from pricekeeper.credentials.secret import (
    CLIENT_SECRET,
    RETRIEVAL_TOKEN,
    SECRET_BYTES_MAX,
    Entropy,
    Secret,
    is_mistyped,
    is_well_formed,
    mint,
)
from pricekeeper.credentials.verification import Verifier
from pricekeeper.errors import (
    ContendedError,
    InvalidClientError,
    InvalidValueError,
    NotFoundError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.storage import ITEM_EXISTS, Item, Key, Set, Store, Update, Write, readable
from pricekeeper.storage.tables import CONFIG, SECRET_RETRIEVAL_TOKENS
from pricekeeper.tenants import (
    Client,
    Enrolment,
    Generation,
    Policy,
    Tenants,
    config_key,
    parse_client_id,
)
from pricekeeper.tenants.ending import random_name
from pricekeeper.tenants.items import TOKENS_VALID_FROM
from pricekeeper.wire.bounds import GRACE_HOURS_MAX

ATTEMPTS_MAX: Final = 8

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A client that has shown its secret, with its policy."""

    client: Client
    policy: Policy


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A retrieval token, for one claim of a secret."""

    token: Secret
    expires_at_epoch: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """A claimable new secret; after the claim the old one is valid for the grace."""

    client_id: str
    retrieval: Retrieval
    grace_period_hours: int


@dataclass(frozen=True, slots=True)
class ClaimedSecret:
    """A client's new secret, shown only once."""

    client_id: str
    client_secret: Secret
    old_secret_expires_at_epoch: int | None


@dataclass(frozen=True, slots=True)
class Provisioned:
    """A created client with its retrieval token, or an updated one without."""

    created: bool
    policy: Policy
    retrieval: Retrieval | None


class Credentials:
    """The credentials in one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tenants: Tenants,
        peppers: Peppers,
        *,
        trail: AuditTrail | None = None,
        verifier: Verifier | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tenants = tenants
        self._trail = trail or AuditTrail(store, clock)
        self._peppers = peppers
        self._entropy = entropy
        self._verifier = verifier or Verifier(store, clock, peppers)
        self.meter = CredentialsMeter()

    async def authenticate(
        self, client_id: str, secret: str, *, doubted: bool = False
    ) -> Authenticated:
        """Find the client of this secret: one read, whether it exists or not.

        Every refusal is the same `InvalidClientError` after the same work. Impossible names and
        secrets cost no read. An imported secret of a ``doubted`` caller waits for a turn.
        """
        try:
            client = parse_client_id(client_id)
        except InvalidValueError as error:
            raise InvalidClientError from error
        if _impossible(secret):
            raise InvalidClientError
        foreign = not is_well_formed(CLIENT_SECRET, secret)
        if not (doubted and foreign):
            return await self._authenticate(client, secret, turn_needed=doubted)
        if not await self._has_secret(client):
            await self._verifier.doubted.wait_as_if()
            raise InvalidClientError
        async with self._verifier.doubted.wait_for_turn(client.org_id):
            return await self._authenticate(client, secret)

    async def _has_secret(self, client: Client) -> bool:
        try:
            record = await self._tenants.read_record(client)
        except NotFoundError:
            return False
        return any(items.held(record.item, self._now_epoch()).values())

    async def _authenticate(
        self, client: Client, secret: str, *, turn_needed: bool = False
    ) -> Authenticated:
        try:
            record = await self._tenants.read_record(client)
        except NotFoundError:
            record = None
        hashes = items.held({} if record is None else record.item, self._now_epoch())
        is_valid = await self._verifier.matches(
            client, client.client_id, hashes, secret, turn_needed=turn_needed
        )
        if record is None or not is_valid:
            raise InvalidClientError
        policy = self._tenants.policy_of(record)
        self.meter.note_login(policy)
        return Authenticated(client, policy)

    async def provision(
        self, client: Client, body: Mapping[str, Any], by: Attribution
    ) -> Provisioned:
        """Create a client with a retrieval token, or replace its settings."""
        key, retrieval, now_epoch = self._new_retrieval(may_produce(by.authority, client))
        claimable = Claimable(key, client, grace_period_hours=0, replaces=None)
        put = items.retrieval_put(claimable, now_epoch)
        enrolment = Enrolment({items.CLAIMABLE: key}, (put,))
        saved = await self._tenants.put(client, body, by, enrolment)
        self.meter.retrievals_issued += saved.created
        return Provisioned(saved.created, saved.policy, retrieval if saved.created else None)

    async def rotate(self, client: Client, grace_period_hours: int, by: Attribution) -> Rotation:
        """Allow a new secret to be claimed: one read and one transaction.

        The present secret stays valid until the claim, and then for the grace. Without a grace, the
        claim ends all tokens of the client. Earlier unused retrieval tokens end.
        """
        if type(grace_period_hours) is not int or not 0 <= grace_period_hours <= GRACE_HOURS_MAX:
            raise InvalidValueError(
                "grace_period_hours", f"must be an integer from 0 to {GRACE_HOURS_MAX}"
            )
        require_trusted_time(self._clock)
        permit = may_produce(by.authority, client)
        for _ in range(ATTEMPTS_MAX):
            item = (await self._tenants.read_record(client)).item
            key, retrieval, now_epoch = self._new_retrieval(permit)
            replaced = items.held(item, now_epoch)[items.SECRET_HASH]
            claimable = Claimable(key, client, grace_period_hours, replaced)
            if await self._make_claimable(claimable, item, now_epoch, by):
                self.meter.retrievals_issued += 1
                _log.info("secret_rotation_begun", client_id=client.client_id)
                return Rotation(client.client_id, retrieval, grace_period_hours)
        raise ContendedError(f"{client.client_id}: others kept rotating its secret")

    async def claim(self, token: str, by: Attribution) -> ClaimedSecret:
        """Mint the secret of the retrieval token: one read and one transaction.

        All invalid tokens raise the same `NotFoundError`.
        """
        return await self.complete_claim(await self.find_claim(token), by)

    async def find_claim(self, token: str) -> Claimable:
        if not is_well_formed(RETRIEVAL_TOKEN, token):
            raise self._not_claimable("unknown", "malformed")
        key = Key(items.retrieval_key(Secret(token)))
        stored = await self._store.get(SECRET_RETRIEVAL_TOKENS, key)
        if stored is None:
            raise self._not_claimable("unknown", "unknown or expired")
        claimable = readable(items.claimable_of, stored)
        if claimable is None:
            raise self._not_claimable("used", "used or unreadable")
        return claimable

    async def complete_claim(self, claimable: Claimable, by: Attribution) -> ClaimedSecret:
        """Mint the secret, unless another caller was faster: one transaction.

        Without a grace, all tokens from the replaced secret end.
        """
        require_trusted_time(self._clock)
        client, client_id = claimable.client, claimable.client.client_id
        # The holder of the retrieval token acts as the client.
        secret = mint(may_produce(client, client), CLIENT_SECRET, self._entropy)
        new_hash = self._peppers.hash(client_id, secret.reveal())
        generation, since_ms = random_name(), 0
        for _ in range(ATTEMPTS_MAX):
            now_epoch = self._now_epoch()
            since_ms = max(since_ms, self._clock.now_ms())
            begins = Generation(generation, since_ms)
            operations = items.claim_operations(claimable, new_hash, now_epoch, begins)
            ends_at_epoch = items.grace_ends_at(claimable, now_epoch)
            try:
                await self._trail.apply(by, _claimed(client, ends_at_epoch), operations)
            except TransactionCancelledError as cancelled:
                replaced = _still_claimable(claimable, cancelled)
                if replaced is None:
                    raise self._not_claimable("used", "used or replaced") from cancelled
                claimable, latest_ms = replaced
                since_ms = max(since_ms, latest_ms)
                continue
            finally:
                self._tenants.forget(client)
            ended = ends_at_epoch is None and claimable.replaces is not None
            self.meter.note_claim(client, now_epoch, ended_tokens=ended)
            _log.info("secret_claimed", client_id=client_id, ended_tokens=ended)
            return ClaimedSecret(client_id, secret, ends_at_epoch)
        raise ContendedError(f"{client_id}: its secret kept changing")

    async def revoke_now(
        self, client: Client, by: Attribution, *, previous_only: bool = False
    ) -> None:
        """End the client's secrets, tokens and retrieval tokens: one read, one write.

        A rotation gives it a new secret. ``previous_only`` keeps the present secret and a pending
        claim, but ends all tokens: they may come from either secret. May be repeated.
        """
        also = items.GRACE_ENDED if previous_only else items.REVOKED
        details = {"secrets": "PREVIOUS" if previous_only else "ALL"}
        change = Change("credentials.revoke", client.client_id, client.org_id, after=details)
        await self._tenants.end_tokens_issued_before_now(client, also=also, audited=(by, change))
        self.meter.revoked += 1
        _log.info("secrets_revoked", client_id=client.client_id, previous_only=previous_only)

    async def _make_claimable(
        self, claimable: Claimable, item: Item, now_epoch: int, by: Attribution
    ) -> bool:
        client = claimable.client
        point = Update(
            CONFIG,
            config_key(client),
            (Set(items.CLAIMABLE, claimable.key),),
            ITEM_EXISTS & items.is_still(items.CLAIMABLE, item.get(items.CLAIMABLE)),
        )
        put = items.retrieval_put(claimable, now_epoch)
        operations: list[Write] = [put, point, *items.org_checks(client)]
        details = {"grace_period_hours": claimable.grace_period_hours}
        change = Change("credentials.rotate", client.client_id, client.org_id, after=details)
        try:
            await self._trail.apply(by, change, operations)
        except TransactionCancelledError:
            return False
        return True

    def _new_retrieval(self, permit: Permit) -> tuple[str, Retrieval, int]:
        token, now_epoch = mint(permit, RETRIEVAL_TOKEN, self._entropy), self._now_epoch()
        retrieval = Retrieval(token, now_epoch + items.RETRIEVAL_SECS)
        return items.retrieval_key(token), retrieval, now_epoch

    def _not_claimable(self, cause: str, why: str) -> NotFoundError:
        """Count and log the cause; the caller learns nothing of it."""
        self.meter.retrievals_refused[f"refused_{cause}"] += 1
        _log.info("claim_refused", why=why)
        return NotFoundError("retrieval token")

    def _now_epoch(self) -> int:
        return self._clock.now_ms() // 1000


def _claimed(client: Client, old_ends_at_epoch: int | None) -> Change:
    kept = old_ends_at_epoch is not None
    details = {"old_secret_expires_at_epoch": old_ends_at_epoch} if kept else None
    return Change("credentials.claim", client.client_id, client.org_id, after=details)


def _impossible(secret: str) -> bool:
    too_long = len(secret.encode("utf-8", "surrogatepass")) > SECRET_BYTES_MAX
    return not secret or too_long or is_mistyped(CLIENT_SECRET, secret)


def _still_claimable(
    claimable: Claimable, cancelled: TransactionCancelledError
) -> tuple[Claimable, int] | None:
    """The claim to try next, if it is still open and only the replaced hash has changed.

    The secret may have been hashed again, or a generation begun by a clock ahead of ours.
    """
    item = cancelled.reasons[1].item
    lost = [
        reason.code is ReasonCode.CONDITION_FAILED
        for index, reason in enumerate(cancelled.reasons)
        if index != 1
    ]
    if any(lost) or item is None or item.get(items.CLAIMABLE) != claimable.key:
        return None
    latest_ms: int = item.get(TOKENS_VALID_FROM, 0)
    return replace(claimable, replaces=item.get(items.SECRET_HASH)), latest_ms
