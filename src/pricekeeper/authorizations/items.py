"""Markers of authorizations in the store: where to look for those that are open or unsettled.

In UsageAggSharded, beside the journal and the log on whose sheets they are:

- ``HOLDS#{visit}`` / ``{region}#{org}``: that region of that organisation is to be swept, for the
  first, second or third time
- ``UNSETTLED#{period}`` / ``{org}#{region}``: in that region are authorizations that nobody has
  settled; a period is three days, the first digits of its regions
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pricekeeper.storage import Delete, Item, Key, Put, Query, TypedItem, attr
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY

HOLDS: Final = "HOLDS#"
UNSETTLED: Final = "UNSETTLED#"
PERIOD_DIGITS: Final = 5
_NONCE: Final = "nonce"
_MARKER: Final = re.compile(r"([0-9a-f]{8})#([^#]{1,100})")


class Marker(NamedTuple):
    """A region of an organisation that is to be swept."""

    org_id: str
    region: str
    nonce: str
    """Another one each time that it is marked."""


def marker_put(
    org_id: str, region: str, expires_at_epoch: int, visit: int = 0, nonce: str = ""
) -> Put:
    """Have a region swept, any number of times.

    It is remembered for as long as what is in it: nobody may be there to sweep it for days.
    """
    key = {"PK": f"{HOLDS}{visit}", "SK": f"{region}#{org_id}"}
    return Put(USAGE_AGG_SHARDED, {**key, _NONCE: nonce, EXPIRY: expires_at_epoch})


def marker_delete(marker: Marker, visit: int) -> Delete:
    """The region was swept; it stays marked if it was marked again meanwhile."""
    key, nonce = Key(f"{HOLDS}{visit}", f"{marker.region}#{marker.org_id}"), attr(_NONCE)
    same = nonce.eq(marker.nonce) if marker.nonce else nonce.absent() | nonce.eq("")
    return Delete(USAGE_AGG_SHARDED, key, same)


def markers_query(visit: int, last_region: str) -> Query:
    """The regions up to that one that are to be swept."""
    return Query(USAGE_AGG_SHARDED, f"{HOLDS}{visit}", first="0", last=f"{last_region}~")


def unsettled_put(org_id: str, region: str, expires_at_epoch: int) -> Put:
    """Say that authorizations of a region are unsettled, any number of times.

    It is remembered for as long as they are.
    """
    key = _unsettled_key(org_id, region)
    return Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, EXPIRY: expires_at_epoch})


def unsettled_delete(org_id: str, region: str) -> Delete:
    """Every authorization of the region is settled."""
    return Delete(USAGE_AGG_SHARDED, _unsettled_key(org_id, region))


def unsettled_queries(
    first_region: str, last_region: str, org_id: str = ""
) -> Iterator[tuple[str, Query]]:
    """For each period, where authorizations are unsettled, or were; the latest one first.

    It is of one organisation, or of all. Regions of the first and the last period may be outside.
    """
    prefix = f"{org_id}#" if org_id else ""
    first, last = (int(region[:PERIOD_DIGITS], 16) for region in (first_region, last_region))
    for number in range(last, first - 1, -1):
        period = f"{number:0{PERIOD_DIGITS}x}"
        yield period, Query(USAGE_AGG_SHARDED, UNSETTLED + period, prefix=prefix)


def _unsettled_key(org_id: str, region: str) -> Key:
    return Key(f"{UNSETTLED}{region[:PERIOD_DIGITS]}", f"{org_id}#{region}")


def unsettled_region(item: Item) -> tuple[str, str]:
    """The organisation and the region of such a marker."""
    org_id, _, region = str(item["SK"]).rpartition("#")
    return org_id, region


def marker_of(item: Item) -> Marker | None:
    """What a marker says; one that names no region is reported."""
    named = _MARKER.fullmatch(str(item["SK"]))
    if named is None:
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable("its sort key names no region")
        return None
    return Marker(named[2], named[1], str(item.get(_NONCE, "")))
