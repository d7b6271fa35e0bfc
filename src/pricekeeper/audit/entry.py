"""An entry of the audit trail: who changed what, when, from where and why. Pure.

The entries of a chain are numbered, and each has the SHA-256 of the one before, over its stored and
exported canonical bytes. So an entry that is changed, removed or moved no longer fits its
neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pricekeeper.authority import Attribution
from pricekeeper.values import OrgId

DEPLOYMENT: Final = "DEPLOYMENT"
SIDE_BYTES_MAX: Final = 8 * 1024
"""The limit of ``before`` and of ``after`` as JSON; both fit into an item."""
_ORG_PREFIX: Final = "ORG#"
_DEPTH_MAX: Final = 4
"""Objects are compared by member to this depth, that of any setting."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class Change:
    """A change to record. It contains no secret."""

    action: str
    target: str
    org_id: OrgId | None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None

    @property
    def chain(self) -> str:
        """The chain of its entry; an organisation's outlives the organisation."""
        return chain_of(self.org_id)


class TrailEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A recorded change."""

    id: str
    chain: str
    seq: int
    previous: str
    previous_expires_at_epoch: int
    at_ms: int
    actor: str
    address: str
    request_id: str
    action: str
    target: str
    expires_at_epoch: int
    """When this entry may be gone: never before the entry before it."""
    reason: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The number, hash and expiry of a chain's last entry."""

    seq: int = 0
    hash: str = ""
    expires_at_epoch: int = 0

    def next_entry(
        self, change: Change, by: Attribution, entry_id: str, at_ms: int, expires_at_epoch: int
    ) -> TrailEntry:
        return TrailEntry(
            id=entry_id,
            chain=change.chain,
            seq=self.seq + 1,
            previous=self.hash,
            previous_expires_at_epoch=self.expires_at_epoch,
            at_ms=at_ms,
            actor=by.actor,
            address=by.address,
            request_id=by.request_id,
            action=change.action,
            target=change.target,
            reason=by.reason,
            before=bounded_side(change.before),
            after=bounded_side(change.after),
            expires_at_epoch=max(self.expires_at_epoch, expires_at_epoch),
        )


def head_after(entry: TrailEntry) -> Head:
    """The end of the chain after this entry."""
    return Head(entry.seq, hash_of(canonical_bytes(entry)), entry.expires_at_epoch)


def chain_of(org_id: OrgId | None) -> str:
    """The chain of an organisation, or of the deployment."""
    return DEPLOYMENT if org_id is None else f"{_ORG_PREFIX}{org_id}"


def org_of(chain: str) -> OrgId | None:
    """The organisation of a chain; ``None`` for the deployment."""
    return OrgId(chain.removeprefix(_ORG_PREFIX)) if chain.startswith(_ORG_PREFIX) else None


def canonical_bytes(entry: TrailEntry) -> bytes:
    """The entry as JSON with sorted members: the bytes that are hashed."""
    return _encode(entry)


def hash_of(canonical: bytes) -> str:
    """The hash that the next entry contains."""
    return hashlib.sha256(canonical).hexdigest()


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The members of each side that the other lacks or has with another value."""
    return _differences(before, after, _DEPTH_MAX)


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], depth: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    old, new = dict[str, Any](), dict[str, Any]()
    for name in before.keys() | after.keys():
        if name not in after:
            old[name] = before[name]
        elif name not in before:
            new[name] = after[name]
        elif before[name] != after[name]:
            was, now = before[name], after[name]
            if depth and isinstance(was, Mapping) and isinstance(now, Mapping):
                was, now = _differences(was, now, depth - 1)
            old[name], new[name] = was, now
    return old, new


def bounded_side(side: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Replace the largest members with their hashes until the rest is small enough.

    So an entry always fits, and a known value can be compared with its hash.
    """
    if side is None:
        return None
    encoded = {name: _encode(value) for name, value in side.items()}
    kept, excess = dict(side), len(_encode(dict(side))) - SIDE_BYTES_MAX
    for name in sorted(encoded, key=lambda name: len(encoded[name]), reverse=True):
        if excess <= 0:
            break
        kept[name] = {"left_out_bytes": len(encoded[name]), "sha256": hash_of(encoded[name])}
        excess -= len(encoded[name]) - len(_encode(kept[name]))
    return kept
