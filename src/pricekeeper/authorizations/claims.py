"""Claims the place of a usage record for the id that a caller gave a call.

An id means one thing in an organisation. Before a call is granted under a caller's id, the place of
a usage record with that id is claimed on its page. Usage records with that id are then refused.

A claim names a sheet; the authorization is on it or on one of the next `CLAIM_SHEETS` of its
chapter. If the log has moved further, these are read, and the claim is moved. A claim without an
authorization belongs to a call that was not granted.

Bounds: `ATTEMPTS_MAX` attempts on a page, and one level of pages for each digit of an id. Waiting
claims on one page share a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.authorizations.reading import CLAIM_SHEETS, AuthorizationReader
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import (
    ConditionFailedError,
    ConflictError,
    ContendedError,
    OutcomeUnknownError,
    PriceKeeperError,
    StoreError,
    UnreadableItemError,
)
from pricekeeper.ledger import Draft
from pricekeeper.ledger.draft import AnyCommand
from pricekeeper.ledger.position import (
    Position,
    authorization_id_of,
    region_of,
    sheets_between,
)
from pricekeeper.metering.journal import (
    ID_DIGITS,
    PAGE_DIGITS,
    Address,
    address_of,
    is_full,
    lanes_of,
    record_on,
    taken_for,
)
from pricekeeper.metering.journal_items import take_places_update
from pricekeeper.metering.posting import Poster, TakenPlace, page_at
from pricekeeper.storage import Store
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy

ATTEMPTS_MAX: Final = 8


class Place(NamedTuple):
    """Where a usage record with an id is; ``address`` is ``None`` until the id has a moment."""

    request_id: str
    address: Address | None
    lanes: int


def place_of(policy: Policy, request_id: str) -> Place:
    """Where a usage record with that id would be."""
    return Place(request_id, address_of(request_id), lanes_of(policy.agg_shard_count))


class Existing(msgspec.Struct, frozen=True):
    """The id of a caller already has this authorization."""

    own_id: str


class Claim:
    """The claim of one id, and its result."""

    __slots__ = ("existing", "failure", "place", "text", "wanted")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.text: str | None = None
        self.wanted = ""
        self.existing: str | None = None
        self.failure: PriceKeeperError | None = None

    def reaches(self, position: Position) -> bool:
        """Whether readers of the claim find what is granted at that position."""
        between = None if self.text is None else sheets_between(self.text, position)
        return between is not None and 0 <= between < CLAIM_SHEETS


class Claims:
    """Claims places for calls of all organisations."""

    def __init__(self, store: Store, reader: AuthorizationReader, poster: Poster) -> None:
        self._store = store
        self._reader = reader
        self._poster = poster

    async def find(self, org_id: str, place: Place) -> str | None:
        places = {place.request_id: place.address}
        found = await self._poster.read_receipts(org_id, place.lanes, places)
        taken = found.get(place.request_id)
        if isinstance(taken, StoreError):
            raise error_copy(taken)
        if not isinstance(taken, TakenPlace):
            return None
        return await self._reader.find_named(org_id, place.request_id, taken.authorization_id)

    def must_wait(self, draft: Draft, org_id: str, claim: Claim, command: AnyCommand) -> bool:
        """Whether the id must be claimed first; the draft then claims it together with others."""
        if claim.reaches(draft.position):
            return False
        claim.wanted = authorization_id_of(draft.position.sort_key, 0)
        waiting: list[Claim] = draft.share("claims", list)
        waiting.append(claim)
        draft.ask("claims", lambda: self.claim_all(org_id, waiting), command.fail)
        return True

    async def claim_all(self, org_id: str, claims: Iterable[Claim]) -> None:
        moving = [
            claim
            for claim in claims
            if claim.text is None or await self._may_move(org_id, claim, claim.text)
        ]
        await self._give_moments(org_id, [one for one in moving if one.place.address is None])
        pages: dict[str, list[Claim]] = {}
        for claim in moving:
            if claim.failure is None:
                pages.setdefault(_address(claim).digits[:PAGE_DIGITS], []).append(claim)
        for some in pages.values():
            await self._claim_on_page(org_id, some, PAGE_DIGITS)

    async def _give_moments(self, org_id: str, claims: Sequence[Claim]) -> None:
        """Give each its place; an unreadable moment fails its own claim only."""
        if claims:
            ids, expires = [one.place.request_id for one in claims], max(map(self._expires, claims))
            addresses = await self._poster.moments.mint(org_id, ids, expires)
            for claim, address in zip(claims, addresses, strict=True):
                if isinstance(address, UnreadableItemError):
                    claim.failure = address
                elif isinstance(address, StoreError):
                    raise error_copy(address)
                else:
                    claim.place = claim.place._replace(address=address)

    async def _claim_on_page(self, org_id: str, claims: Sequence[Claim], depth: int) -> None:
        left = list(claims)
        for _ in range(ATTEMPTS_MAX):
            place, address = left[0].place, _address(left[0])
            key = page_at(org_id, place.lanes, address, depth)
            changes = {_address(one).name: (one.text, one.wanted) for one in left}
            expires = max(map(self._expires, left))
            try:
                await self._store.update(take_places_update(key, changes, expires))
            except ConditionFailedError as refused:
                page = dict(refused.item or {})
            except (OutcomeUnknownError, ContendedError):
                page = await self._store.get(USAGE_AGG_SHARDED, key) or {}
            else:
                for one in left:
                    one.text = one.wanted
                return
            left = [one for one in left if not _learn(one, _stored(page, _address(one).name))]
            missing = [one for one in left if _address(one).name not in page]
            if missing and is_full(page) and depth < ID_DIGITS:
                await self._descend(org_id, missing, depth + 1)
                left = [one for one in left if one not in missing]
            if not left:
                return
        raise ContendedError("others kept claiming on the same page")

    async def _descend(self, org_id: str, claims: Sequence[Claim], depth: int) -> None:
        children: dict[str, list[Claim]] = {}
        for one in claims:
            children.setdefault(_address(one).digits[:depth], []).append(one)
        for some in children.values():
            await self._claim_on_page(org_id, some, depth)

    def _expires(self, claim: Claim) -> int:
        return self._poster.marks.expires_at_epoch(region_of(claim.wanted))

    async def _may_move(self, org_id: str, claim: Claim, text: str) -> bool:
        """Whether the claim has no authorization, and would move forward.

        A process that would move it back had read less of the log than others.
        """
        claim.existing = await self._reader.find_named(org_id, claim.place.request_id, text)
        return claim.existing is None and claim.wanted > text


class _Stored(NamedTuple):
    is_record: bool
    claim: str | None


def _learn(claim: Claim, stored: _Stored) -> bool:
    """Return whether the stored content was unknown before."""
    if stored.is_record:
        claim.failure = ConflictError(
            "authorization_id", "is the id of a usage record; send a new id"
        )
        return True
    if stored.claim is None or stored.claim == claim.text:
        return False
    claim.text = stored.claim
    return True


def _stored(page: Mapping[str, Any], name: str) -> _Stored:
    if name not in page:
        return _Stored(is_record=False, claim=None)
    claim = taken_for(page, name)
    return _Stored(claim is None and record_on(page, name) is not None, claim)


def _address(claim: Claim) -> Address:
    if claim.place.address is None:
        raise LookupError("an id that has no moment yet is on no page")
    return claim.place.address
