"""The journal: which page a record is on, and what stands there. No I/O, no clock.

A request id of version 7 says when it was made. So the id alone says where its record is, for every
instance and every retry: on a **page** of 16 ms, in a **region** of 65.5 s. A page is an item; each
record is one attribute of it, named by the rest of its id. What many records share, such as app,
label and day, is an attribute of its own, its **terms**, under a name made from its content.

A page that is full never changes again. Records that would be on it are on its children, one for
each further digit of the id.

Records of authorized calls are on **sheets**, beside the pages of a region (`sheet_sort_key`). A
sheet has up to a few authorizations, and the record of each of them once it is captured. Their ids
are of version 8, and say on which sheet and under which number the authorization is. If the caller
gave it an id of its own, the place that a usage record of that id would have is **taken**: in place
of a record it says which authorization the id stands for.

Time passes in **ticks**, which are as long as a region. A record notes when it was sent; the tick
of that moment is the one in which it is **posted**.
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
"""A page that holds as much as this takes nothing more."""
WRITE_WEIGHT_MAX: Final = 100
"""What one write may add to a page, so that no page comes near the largest item."""
WEIGHT_BYTES: Final = 512
"""A record weighs 1, and 1 more for each so many bytes of its terms."""
SHARDS_PER_LANE: Final = 8
"""An organisation of so many shards has one lane of pages; one of twice as many has two."""

PAGE_DIGITS: Final = 11
ID_DIGITS: Final = 31
_TIME_DIGITS: Final = 12
_VARIANT_AT: Final = 16
_NAME_LENGTH: Final = 14
_TERMS_BYTES: Final = 12
_PRIVATE, _VOID_NOTE = "x", "v"
"""What the sort keys of a private page and a void note start with: no digits, and no sheet."""
_ERROR, _ESTIMATED = 1, 2
_ONE_DAY_TICKS: Final = tick_of(MS_PER_DAY)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")

_encode: Final = msgspec.msgpack.Encoder().encode
encode_entry: Final[Callable[[JournalEntry], bytes]] = _encode
"""The value of a record's attribute."""


def lanes_of(shard_count: int) -> int:
    """Over how many partitions a region is spread, for an organisation of so many shards."""
    return max(1, shard_count // SHARDS_PER_LANE)


def ticks_of_day(day: str) -> tuple[int, int]:
    """Return the first and last tick in which a record of that day can be posted, in any zone."""
    start = tick_of((date_of(day) - date_of("19700101")).days * MS_PER_DAY)
    return start - _ONE_DAY_TICKS, start + 4 * _ONE_DAY_TICKS


class Address(msgspec.Struct, frozen=True, gc=False):
    """Where the record of a request id is: its digits without dashes and version."""

    digits: str

    @property
    def minted_ms(self) -> int:
        """When the id was made, by the clock of whoever made it."""
        return int(self.digits[:_TIME_DIGITS], 16)

    @property
    def region(self) -> str:
        """The digits that all ids of a region have in common."""
        return self.digits[:REGION_DIGITS]

    def lane(self, lanes: int) -> int:
        """Which lane of its region the record is in: pages that follow each other take turns."""
        return int(self.digits[PAGE_DIGITS - 1], 16) % lanes

    @property
    def name(self) -> str:
        """The record's attribute on its page."""
        rest = bytes.fromhex(self.digits[PAGE_DIGITS:])
        return binascii.b2a_base64(rest).translate(_URL_SAFE)[:_NAME_LENGTH].decode()


def address_of(request_id: str) -> Address | None:
    """Where the record of that id is; ``None`` if the id has no time in it.

    The id is in canonical form: lower case, with dashes.
    """
    digits = request_id.replace("-", "")
    if digits[_TIME_DIGITS] != "7" or digits[_VARIANT_AT] not in "89ab":
        return None
    return Address(digits[:_TIME_DIGITS] + digits[_TIME_DIGITS + 1 :])


def request_id_of(region_page: str, name: str) -> str:
    """The request id of a record, from its page's sort key and its attribute's name."""
    if region_page[:1] == SHEET:
        return authorization_id_of(region_page, int(name))
    rest = base64.urlsafe_b64decode(name + "==").hex()
    digits = region_page[:PAGE_DIGITS] + rest
    return f"{digits[:8]}-{digits[8:12]}-7{digits[12:15]}-{digits[15:19]}-{digits[19:]}"


class Terms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the records of one app, label and day have in common."""

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
    """Those of the tags that the organisation has declared: totals are made by their values."""


class StoredTerms(NamedTuple):
    """Terms as a page has them."""

    ref: bytes
    name: str
    data: bytes


def store_form(terms: Terms) -> StoredTerms:
    """The terms as a page has them: the same terms have the same name everywhere."""
    data = _encode(terms)
    ref = hashlib.blake2b(data, digest_size=_TERMS_BYTES).digest()
    return StoredTerms(ref, _terms_name(ref), data)


def _terms_name(ref: bytes) -> str:
    """The attribute of terms on a page. It needs no padding, since its length is divisible by 3."""
    return "t" + binascii.b2a_base64(ref, newline=False).translate(_URL_SAFE).decode()


class JournalEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record as its page has it."""

    fingerprint: bytes
    nonce: bytes
    """Whose sending wrote it: whoever lost the reply knows it again."""
    sent_at_ms: int
    lag_ms: int
    """How long before it was sent the call happened; below zero, if a clock is ahead."""
    terms: bytes
    flags: int
    cost_usd_picos: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    request_id: str = ""
    """On a private page, where the name says nothing."""
    voids: str = ""
    """The record that this one takes out of every sum: it is a correction, its amounts negative."""

    @property
    def tick(self) -> int:
        """The tick in which it was posted."""
        return tick_of(self.sent_at_ms)

    @property
    def happened_at_ms(self) -> int:
        """When the call happened."""
        return self.sent_at_ms - self.lag_ms

    @property
    def counters(self) -> Counters:
        """What it adds to every sum that it belongs to."""
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
    """How the call ended and how it was priced, as one number."""
    return (_ERROR if is_error else 0) | (_ESTIMATED if is_estimated else 0)


def errors_of(flags: int) -> int:
    """1 if the call has failed."""
    return flags & _ERROR


def is_estimated(flags: int) -> bool:
    """Whether it was priced at the highest prices, for want of its own."""
    return bool(flags & _ESTIMATED)


class Record(NamedTuple):
    """A record that was counted: its entry, and the terms that it names."""

    request_id: str
    entry: JournalEntry
    terms: Terms

    @property
    def receipt(self) -> Receipt:
        """The answer that the record got, and that its duplicates get."""
        return receipt_of(self.entry, self.terms)


def receipt_of(entry: JournalEntry, terms: Terms) -> Receipt:
    """The answer to a record."""
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
        shard_id=0,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        cache_read_tokens=entry.cache_read_tokens,
        cache_write_5m_tokens=entry.cache_write_5m_tokens,
        cache_write_1h_tokens=entry.cache_write_1h_tokens,
        price_estimated=is_estimated(entry.flags),
        calling_region=terms.calling_region,
        tags=dict(terms.tags) if terms.tags else {},
    )


def entry_on(page: Mapping[str, Any], name: str) -> Record | None:
    """The record of that name on the page, if it is there."""
    data = page.get(name)
    if data is None or taken_for(page, name) is not None:
        return None
    return _record(page, name, data, {})


def taken_for(page: Mapping[str, Any], name: str) -> str | None:
    """The authorization that the place of a record is taken for, if it is."""
    held = page.get(name)
    if type(held) is not str:
        return None
    if not names_authorization(held):
        raise _unreadable(page, f"{name} names no authorization")
    return held


def records_on(page: Mapping[str, Any]) -> Iterator[Record]:
    """Every record on the page. Raises `UnreadableItemError` for what is none."""
    weight_on(page)  # raises if it is no page at all
    known: dict[bytes, Terms] = {}
    for name, data in page.items():
        if len(name) == _NAME_LENGTH and taken_for(page, name) is None:
            yield _record(page, name, data, known)


def weight_on(page: Mapping[str, Any]) -> int:
    """How much is on the page."""
    return TypedItem(USAGE_AGG_SHARDED, page).whole("n", 0, least=0)


def is_full(page: Mapping[str, Any]) -> bool:
    """Whether the page takes nothing more, for good."""
    return weight_on(page) >= FULL_WEIGHT


def _record(page: Mapping[str, Any], name: str, data: Any, known: dict[bytes, Terms]) -> Record:
    try:
        entry = _decode_entry(data)
        terms = known.get(entry.terms)
        if terms is None:
            terms = known[entry.terms] = _decode_terms(page[_terms_name(entry.terms)])
            date_of(terms.day)
        request_id = entry.request_id or request_id_of(page["SK"], name)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(page, f"{name} is no record: {error}") from error
    return Record(request_id, entry, terms)


def _unreadable(page: Mapping[str, Any], reason: str) -> UnreadableItemError:
    return TypedItem(USAGE_AGG_SHARDED, page).report_unreadable(reason)


def private_name(number: int) -> str:
    """The name of a record on a private page, where the id is in the entry."""
    return f"{number:0{_NAME_LENGTH}d}"


def private_sort_key(nonce: bytes) -> str:
    """The sort key of a page that one commit alone writes."""
    return _PRIVATE + nonce.hex()


def void_note_sort_key(request_id: str) -> str:
    """The sort key of the item beside a record that says that it is voided."""
    return _VOID_NOTE + request_id


def is_void_note(sort_key: str) -> bool:
    """Whether the item of that sort key is no page, but says that a record is voided."""
    return sort_key.startswith(_VOID_NOTE)


def weight_of(terms: StoredTerms) -> int:
    """What a record with these terms weighs on its page."""
    return 1 + len(terms.data) // WEIGHT_BYTES
