"""The journal's layout: on which page a record is, and how it is stored. No I/O, no clock.

A version 7 request id contains its time, so the id alone tells where its record is: on a **page**
of 16 ms in a **region** of 65.5 s. A page is an item; each record is one attribute, named by the
rest of its id. The **terms** that many records share (app, label, day) are an attribute named by a
hash of their content.

A full page never changes again: further records go to its children, one for each next digit.
An id without a time gets a **moment** (`metering.moments`), and its record is on the page of that
moment. A **void note** in a record's region tells listings which correction voids that record.

Records of authorized calls are on **sheets** beside the pages (`sheet_sort_key`), with the grants.
Their version 8 ids contain the sheet and the number of the authorization. If the caller gave its
own id, the place of a usage record of that id is **taken**: it contains the authorization's id.

A **tick** is as long as a region. A record is **posted** in the tick in which it was sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.days import MS_PER_DAY, date_of
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import SHEET, authorization_id_of
from pricekeeper.metering.counters import NOTHING, Counters
from pricekeeper.metering.receipt import Receipt
from pricekeeper.metering.usage import names_authorization
from pricekeeper.storage import TypedItem
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.ticks import REGION_DIGITS, tick_of

FULL_WEIGHT: Final = 64
WRITE_WEIGHT_MAX: Final = 100
"""Of one write, so no page comes near the largest item."""
WEIGHT_BYTES: Final = 512
"""A record weighs 1, plus 1 for each so many bytes of its terms."""
SHARDS_PER_LANE: Final = 8

PAGE_DIGITS: Final = 11
ID_DIGITS: Final = 31
_TIME_DIGITS: Final = 12
_VARIANT_AT: Final = 16
_NAME_LENGTH: Final = 14
_TERMS_BYTES: Final = 12
_HASH_BYTES: Final = 10
_VOID_NOTE: Final = "v"
"""First character of the sort keys of void notes; those of pages are digits."""
_ERROR, _ESTIMATED = 1, 2
_ONE_DAY_TICKS: Final = tick_of(MS_PER_DAY)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")

_encode: Final = msgspec.msgpack.Encoder().encode
encode_entry: Final[Callable[[JournalEntry], bytes]] = _encode


def lanes_of(shard_count: int) -> int:
    """Return how many lanes a region has for an organisation with so many shards."""
    return max(1, shard_count // SHARDS_PER_LANE)


def ticks_of_day(day: str) -> tuple[int, int]:
    """The first and last tick in which a record of that day can be posted, in any zone."""
    start = tick_of((date_of(day) - date_of("19700101")).days * MS_PER_DAY)
    return start - _ONE_DAY_TICKS, start + 4 * _ONE_DAY_TICKS


class Address(msgspec.Struct, frozen=True, gc=False):
    """The place of a request id's record: its digits without dashes and version.

    For an id without a time: the digits of its moment and of a hash.
    """

    digits: str
    is_hashed: bool = False

    @property
    def minted_ms(self) -> int:
        return int(self.digits[:_TIME_DIGITS], 16)

    @property
    def region(self) -> str:
        return self.digits[:REGION_DIGITS]

    def lane(self, lanes: int) -> int:
        """The lane; consecutive pages take turns."""
        return int(self.digits[PAGE_DIGITS - 1], 16) % lanes

    @property
    def name(self) -> str:
        rest = bytes.fromhex(self.digits[PAGE_DIGITS:])
        return binascii.b2a_base64(rest).translate(_URL_SAFE)[:_NAME_LENGTH].decode()


def address_of(request_id: str) -> Address | None:
    """The place of a canonical id's record; ``None`` if the id has no time in it."""
    digits = request_id.replace("-", "")
    if digits[_TIME_DIGITS] != "7" or digits[_VARIANT_AT] not in "89ab":
        return None
    return Address(digits[:_TIME_DIGITS] + digits[_TIME_DIGITS + 1 :])


def address_at(request_id: str, minted_ms: int) -> Address:
    """The place of the record of an id without a time, given its moment.

    The digit where an id of version 7 has its variant is 0, so no such id has this place.
    """
    hashed = hashlib.blake2b(request_id.encode(), digest_size=_HASH_BYTES).hexdigest()
    before = _VARIANT_AT - 1 - _TIME_DIGITS
    rest = f"{hashed[:before]}0{hashed[before:]}"[: ID_DIGITS - _TIME_DIGITS]
    return Address(f"{minted_ms:0{_TIME_DIGITS}x}{rest}", is_hashed=True)


def request_id_of(sort_key: str, name: str) -> str:
    """The request id of a record from its page's sort key and its attribute."""
    if sort_key[:1] == SHEET:
        return authorization_id_of(sort_key, int(name))
    rest = base64.urlsafe_b64decode(name + "==").hex()
    digits = sort_key[:PAGE_DIGITS] + rest
    return f"{digits[:8]}-{digits[8:12]}-7{digits[12:15]}-{digits[15:19]}-{digits[19:]}"


class Terms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the records of one app, label and day share."""

    scope_key: str
    app_id: str | None
    label: str
    day: str
    service_tier: str
    pricing_version: str
    pricing_source: str
    calling_region: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    tag_keys: tuple[str, ...] = ()


class StoredTerms(NamedTuple):
    """Terms in their stored form."""

    ref: bytes
    name: str
    data: bytes


def encode_terms(terms: Terms) -> StoredTerms:
    """Encode terms; the same terms have the same name everywhere."""
    data = _encode(terms)
    ref = hashlib.blake2b(data, digest_size=_TERMS_BYTES).digest()
    return StoredTerms(ref, _terms_name(ref), data)


def _terms_name(ref: bytes) -> str:
    """Needs no padding: its length is divisible by 3."""
    return "t" + binascii.b2a_base64(ref, newline=False).translate(_URL_SAFE).decode()


class JournalEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record in its stored form."""

    fingerprint: bytes
    nonce: bytes
    """Identifies the sending that wrote it, so that a sender recognises it after a lost reply."""
    sent_at_ms: int
    lag_ms: int
    """Time from the call to the sending; negative if a clock is ahead."""
    terms: bytes
    flags: int
    cost_usd_picos: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    request_id: str = ""
    """Where the attribute's name has no id: of an id without a time, and on a sheet."""
    voids: str = ""
    """The voided record: this one is a correction, with negative amounts."""

    @property
    def tick(self) -> int:
        return tick_of(self.sent_at_ms)

    @property
    def happened_at_ms(self) -> int:
        return self.sent_at_ms - self.lag_ms

    @property
    def counters(self) -> Counters:
        sign = -1 if self.voids else 1
        counted = Counters(
            self.cost_usd_picos,
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_5m_tokens + self.cache_write_1h_tokens,
            sign,
            sign * errors_of(self.flags),
        )
        return NOTHING.less_voided(NOTHING - counted) if self.voids else counted


_decode_entry: Final = msgspec.msgpack.Decoder(JournalEntry).decode
_decode_terms: Final = msgspec.msgpack.Decoder(Terms).decode


def flags_of(*, is_error: bool, is_estimated: bool) -> int:
    """Encode how the call ended and how it was priced."""
    return (_ERROR if is_error else 0) | (_ESTIMATED if is_estimated else 0)


def errors_of(flags: int) -> int:
    """Return 1 if the call failed."""
    return flags & _ERROR


def is_estimated(flags: int) -> bool:
    """Whether it was priced at the highest prices, because its own are unknown."""
    return bool(flags & _ESTIMATED)


class Record(NamedTuple):
    """A counted record: its entry and terms, and the lane of its region that it is in."""

    request_id: str
    entry: JournalEntry
    terms: Terms
    lane: int = 0

    @property
    def receipt(self) -> Receipt:
        return receipt_of(self.entry, self.terms, self.lane)


def receipt_of(entry: JournalEntry, terms: Terms, lane: int) -> Receipt:
    """Make the answer to a record."""
    return Receipt(
        fingerprint=entry.fingerprint,
        scope_key=terms.scope_key,
        model_label=terms.label,
        org_day=terms.day,
        cost_usd_picos=entry.cost_usd_picos,
        pricing_version=terms.pricing_version,
        pricing_source=terms.pricing_source,
        service_tier=terms.service_tier,
        accepted_at_ms=entry.sent_at_ms,
        commit_id=entry.nonce.hex(),
        shard_id=lane,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        cache_read_tokens=entry.cache_read_tokens,
        cache_write_5m_tokens=entry.cache_write_5m_tokens,
        cache_write_1h_tokens=entry.cache_write_1h_tokens,
        price_estimated=is_estimated(entry.flags),
        calling_region=terms.calling_region,
        tags=dict(terms.tags) if terms.tags else {},
    )


def record_on(page: Mapping[str, Any], name: str) -> Record | None:
    """The record of that name, if it is on the page."""
    data = page.get(name)
    if data is None or taken_for(page, name) is not None:
        return None
    return _record(page, name, data, {})


def taken_for(page: Mapping[str, Any], name: str) -> str | None:
    """The authorization for which the record's place is taken, if it is."""
    held = page.get(name)
    if type(held) is not str:
        return None
    if not names_authorization(held):
        raise _unreadable(page, f"{name} names no authorization")
    return held


def records_on(page: Mapping[str, Any]) -> Iterator[Record]:
    """Yield every record on the page; raise `UnreadableItemError` for anything else."""
    weight_on(page)  # raises if it is no page at all
    known: dict[bytes, Terms] = {}
    for name, data in page.items():
        if len(name) == _NAME_LENGTH and taken_for(page, name) is None:
            yield _record(page, name, data, known)


def weight_on(page: Mapping[str, Any]) -> int:
    """The weight of the page."""
    return TypedItem(USAGE_AGG_SHARDED, page).whole("n", 0, least=0)


def is_full(page: Mapping[str, Any]) -> bool:
    """Whether the page accepts no more records."""
    return weight_on(page) >= FULL_WEIGHT


def _record(page: Mapping[str, Any], name: str, data: Any, known: dict[bytes, Terms]) -> Record:
    try:
        entry = _decode_entry(data)
        terms = known.get(entry.terms)
        if terms is None:
            terms = known[entry.terms] = _decode_terms(page[_terms_name(entry.terms)])
            date_of(terms.day)
        request_id = entry.request_id or request_id_of(page["SK"], name)
        lane = int(page["PK"].rpartition("#")[2])
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(page, f"{name} is no record: {error}") from error
    return Record(request_id, entry, terms, lane)


def _unreadable(page: Mapping[str, Any], reason: str) -> UnreadableItemError:
    return TypedItem(USAGE_AGG_SHARDED, page).report_unreadable(reason)


def name_on_sheet(number: int) -> str:
    """Name a record on a sheet, where the entry has the id."""
    return f"{number:0{_NAME_LENGTH}d}"


def void_note_sort_key(request_id: str) -> str:
    """The sort key of the void note beside a record."""
    return _VOID_NOTE + request_id


def is_void_note(sort_key: str) -> bool:
    """Whether that sort key is a void note's."""
    return sort_key.startswith(_VOID_NOTE)


def weight_of(terms: StoredTerms) -> int:
    """The weight of a record with these terms."""
    return 1 + len(terms.data) // WEIGHT_BYTES
