"""Claims of the places that usage records of callers' own ids would have.

An id is one thing in an organisation. Before a call is granted under an id that its caller gave,
the place where a usage record of that id would be is **claimed**: on its page, or in place of its
receipt. From then on a usage record of that id is refused there, and whoever reports one looks into
the log. The claim says about where in the log to look: the authorization is on the sheet that it
names, or on one of the next `CLAIM_SHEETS` of that chapter. A claim without an authorization is
that of a call which was not granted in the end; whoever asks under the same id goes on with it. If
the log has gone on too far for that, it looks what was granted behind the claim, and then moves it:
nothing more can be granted there.

That an id is granted once is the log's own business: its sheets name the ids, in one order.

Claims that wait together and are on one page are one plain write.

Bounds: `ATTEMPTS_MAX` attempts on a page, and as many levels of pages as an id has digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pricekeeper.authorizations.reading import CLAIM_SHEETS, AuthorizationReader
from pricekeeper.errors import (
    ConditionFailedError,
    ConflictError,
    ContendedError,
    OutcomeUnknownError,
    PriceKeeperError,
)
from pricekeeper.ledger.position import Position, sheets_between
from pricekeeper.metering.journal import (
    ID_DIGITS,
    PAGE_DIGITS,
    Address,
    entry_on,
    is_full,
    taken_for,
)
from pricekeeper.metering.journal_items import take_places_update
from pricekeeper.metering.posting import page_at
from pricekeeper.metering.receipt import receipt_key, receipt_taken_for, take_place_put
from pricekeeper.storage import Item, Store
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

ATTEMPTS_MAX: Final = 8


class Place(NamedTuple):
    """Where a usage record of an id would be: on its page, or else in its receipt."""

    request_id: str
    address: Address | None
    lanes: int
    expires_at_epoch: int


class Claim:
    """The claim of one id, and what it has come to."""

    __slots__ = ("existing", "failure", "place", "text", "wanted")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.text: str | None = None
        """What stands at the place, once it is claimed."""
        self.wanted = ""
        """What is to stand there."""
        self.existing: str | None = None
        """The authorization that the id stands for already."""
        self.failure: PriceKeeperError | None = None

    def reaches(self, position: Position) -> bool:
        """Whether what is granted at that position is found by the claim."""
        between = None if self.text is None else sheets_between(self.text, position)
        return between is not None and 0 <= between < CLAIM_SHEETS


class Claims:
    """Claims places for calls of all organisations."""

    def __init__(self, store: Store, reader: AuthorizationReader) -> None:
        self._store = store
        self._reader = reader

    async def claim_all(self, org_id: str, claims: Iterable[Claim]) -> None:
        """Claim the places of these ids as they want, or find what they stand for already."""
        pages: dict[str, list[Claim]] = {}
        for claim in claims:
            address = claim.place.address
            if claim.text is not None and not await self._may_move(org_id, claim, claim.text):
                continue
            if address is None:
                await self._claim_receipt(org_id, claim)
            else:
                pages.setdefault(address.digits[:PAGE_DIGITS], []).append(claim)
        for some in pages.values():
            await self._claim_on_page(org_id, some, PAGE_DIGITS)

    async def _claim_on_page(self, org_id: str, claims: Sequence[Claim], depth: int) -> None:
        left = list(claims)
        for _ in range(ATTEMPTS_MAX):
            place, address = left[0].place, _address(left[0])
            key = page_at(org_id, place.lanes, address, depth)
            changes = {_address(one).name: (one.text, one.wanted) for one in left}
            expires = max(one.place.expires_at_epoch for one in left)
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
            left = [one for one in left if not _learn(one, _held(page, _address(one).name))]
            missing = [one for one in left if _address(one).name not in page]
            if missing and is_full(page) and depth < ID_DIGITS:
                await self._descend(org_id, missing, depth + 1)
                left = [one for one in left if one not in missing]
            if not left:
                return
        raise ContendedError("others kept claiming on the same page")

    async def _descend(self, org_id: str, claims: Sequence[Claim], depth: int) -> None:
        """Claim on the children of a full page, by the next digit of the ids."""
        children: dict[str, list[Claim]] = {}
        for one in claims:
            children.setdefault(_address(one).digits[:depth], []).append(one)
        for some in children.values():
            await self._claim_on_page(org_id, some, depth)

    async def _claim_receipt(self, org_id: str, claim: Claim) -> None:
        place = claim.place
        for _ in range(ATTEMPTS_MAX):
            put = take_place_put(
                org_id, place.request_id, claim.wanted, place.expires_at_epoch, claim.text
            )
            try:
                await self._store.put(put)
            except ConditionFailedError as refused:
                item: Item = dict(refused.item or {})
            except (OutcomeUnknownError, ContendedError):
                found = await self._store.get(*receipt_key(org_id, place.request_id))
                item = found or {}
            else:
                claim.text = claim.wanted
                return
            taken = receipt_taken_for(item)
            if _learn(claim, _Held(bool(item) and taken is None, taken)):
                return
        raise ContendedError("others kept claiming the same id")

    async def _may_move(self, org_id: str, claim: Claim, text: str) -> bool:
        """Whether nothing was granted by a claim, and it is to be moved on, not back.

        Whoever wants to move one back has not read the log as far as others have; now it has.
        """
        claim.existing = await self._reader.find_named(org_id, claim.place.request_id, text)
        return claim.existing is None and claim.wanted > text


class _Held(NamedTuple):
    """What stands at a place."""

    is_record: bool
    claim: str | None


def _learn(claim: Claim, held: _Held) -> bool:
    """Learn what stands at the place of an id; whether that is anything new."""
    if held.is_record:
        claim.failure = ConflictError("authorization_id", "is that of a usage record")
        return True
    if held.claim is None or held.claim == claim.text:
        return False
    claim.text = held.claim
    return True


def _held(page: Mapping[str, Any], name: str) -> _Held:
    if name not in page:
        return _Held(is_record=False, claim=None)
    claim = taken_for(page, name)
    return _Held(claim is None and entry_on(page, name) is not None, claim)


def _address(claim: Claim) -> Address:
    if claim.place.address is None:
        raise LookupError("an id without a time is on no page")
    return claim.place.address
