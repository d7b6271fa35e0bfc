"""Reads authorizations: the grant from its sheet, and the outcome from the log.

The outcome is on a sheet that is not filed yet, which this process has in memory, or is filed
beside the grant (`pricekeeper.ledger`). The usage record of a captured one is on the sheet of its
capture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.authorizations.items import (
    RecordPlace,
    authorizations_on,
    captured,
    find_on,
    record_place,
    with_outcome,
)
from pricekeeper.errors import ContendedError, UnreadableItemError
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.items import (
    behind_query,
    outcomes_key,
    prefix_query,
    sheet_key,
    sheet_partition,
)
from pricekeeper.ledger.position import (
    OUTCOMES,
    SHEET,
    authorization_id_of,
    outcome_name,
    outcomes_sort_key,
    sheet_number,
    sheet_sort_key,
)
from pricekeeper.ledger.sheet import parse_filed, readable_names, readable_sheet
from pricekeeper.metering.journal import Record, entry_on, private_name
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

READINGS_MAX: Final = 4
CLAIM_SHEETS: Final = 256
"""How many sheets behind its claim an authorization is at most."""
CLAIM_PAGE: Final = 16
"""How many of them are read at once: it is nearly always on one of the first."""
UNKNOWN: Final = -1
"""The generation of an authorization that must be read again before it is changed."""


class Seen(NamedTuple):
    """An authorization, and the generation of the log when it was read."""

    authorization: Authorization
    generation: int
    """No outcome that came before was forgotten since then."""


class AuthorizationReader:
    """Reads authorizations of organisations."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def find(self, org_id: str, own_id: str) -> Seen | None:
        book = await self._ledger.read_book(org_id)
        for _ in range(READINGS_MAX):
            generation = book.generation
            keys = (sheet_key(org_id, own_id), outcomes_key(org_id, outcomes_sort_key(own_id)))
            sheet, filed = await self._store.batch_get([(USAGE_AGG_SHARDED, key) for key in keys])
            granted = find_on(sheet, own_id)
            if granted is None:
                return None
            outcome = book.outcome(own_id) or await self._read_filed(org_id, own_id, filed)
            place = record_place(outcome)
            record = None if place is None else await self._read_record(org_id, place)
            if book.generation == generation:  # else an outcome may be neither filed nor here
                return Seen(with_outcome(granted, outcome, record), generation)
        raise ContendedError("chapters were filed while an authorization was read")

    async def find_named(self, org_id: str, name: str, claim: str) -> str | None:
        """Find the authorization whose caller gave it that id.

        ``claim`` says about where in the log to look. A claim without a grant costs most: it reads
        `CLAIM_SHEETS` sheets.
        """
        book = await self._ledger.read_book(org_id)
        own_id = book.named(name)
        if own_id is not None or book.has_chapter_of(sheet_sort_key(claim)):
            return own_id
        read = 0
        async for sheet in query_items(self._store, behind_query(org_id, claim, CLAIM_PAGE)):
            number = readable_names(sheet).get(name)
            if number is not None:
                return authorization_id_of(str(sheet["SK"]), number)
            read += 1
            if read >= CLAIM_SHEETS:
                break
        return None

    async def find_record(self, org_id: str, own_id: str, request_id: str) -> Record | None:
        item = await self._store.get(USAGE_AGG_SHARDED, sheet_key(org_id, own_id))
        if item is None or request_id not in readable_names(item):
            return None
        return entry_on(item, private_name(sheet_number(own_id)))

    async def read_region(self, org_id: str, region: str) -> AsyncIterator[Seen]:
        """The authorizations of a region, without the settlements of captured ones.

        Reasons of voids may be cut. Unreadable ones are reported and left out.
        """
        book = await self._ledger.read_book(org_id)
        for _ in range(READINGS_MAX):
            generation = book.generation
            pk = sheet_partition(org_id, region)
            query = Query(USAGE_AGG_SHARDED, pk, first=OUTCOMES, last=f"{SHEET}~")
            filed: dict[str, Item] = {}
            found: list[Authorization] = []
            async for item in query_items(self._store, query):
                if str(item["SK"]).startswith(OUTCOMES):
                    filed[str(item["SK"])] = item
                else:
                    found += authorizations_on(item)
            outcomes = [
                book.outcome(one.id) or _filed(filed.get(outcomes_sort_key(one.id)), one.id)[0]
                for one in found
            ]
            if book.generation == generation:
                for granted, outcome in zip(found, outcomes, strict=True):
                    yield Seen(with_outcome(granted, outcome), generation)
                return
        raise ContendedError("chapters were filed while a region was read")

    async def _read_filed(self, org_id: str, own_id: str, filed: Item | None) -> str:
        """The filed outcome; a long one is read from its sheet."""
        outcome, place = _filed(filed, own_id)
        if place:
            page = await self._store.query(prefix_query(org_id, place))
            for item in page.items:
                return readable_sheet(org_id, item).outcomes.get(own_id, outcome)
        return outcome

    async def _read_record(self, org_id: str, place: RecordPlace) -> Record:
        page = await self._store.query(prefix_query(org_id, place.prefix))
        record = entry_on(page.items[0], private_name(place.number)) if page.items else None
        if record is None:
            outcome = captured(*place)
            raise UnreadableItemError(f"the record of {outcome[:40]!r} is not there")
        return record


def _filed(item: Item | None, authorization_id: str) -> tuple[str, str]:
    """The filed outcome, empty if none, and where the rest of a cut one is."""
    text = "" if item is None else item.get(outcome_name(authorization_id), "")
    return parse_filed(text if isinstance(text, str) else "")
