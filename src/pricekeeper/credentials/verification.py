"""Whether a secret is one of those that are stored: every kind of hash, at a bounded cost.

A hash of ours costs microseconds, so those are always compared, also where nothing is stored: the
time taken says nothing about what there is. A bcrypt hash costs a quarter of a second, off the
event loop, and is compared only if nothing else matched. Where the caller is doubted, see
`pricekeeper.credentials.doubt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import structlog

from pricekeeper.clock import Clock
from pricekeeper.credentials.doubt import DoubtedSecrets
from pricekeeper.credentials.hashing import Peppers
from pricekeeper.credentials.legacy import LegacyHashes, is_legacy
from pricekeeper.values import OrgId

_log = structlog.get_logger(__name__)


class Verifier:
    """Compares secrets with hashes. ``owner`` is what a hash is bound to, such as a client's id."""

    def __init__(self, clock: Clock, peppers: Peppers) -> None:
        self._peppers = peppers
        self._legacy = LegacyHashes()
        self.doubted = DoubtedSecrets(clock)

    async def find(
        self,
        org_id: OrgId,
        owner: str,
        hashes: Sequence[str | None],
        secret: str,
        *,
        turn_needed: bool = False,
    ) -> str | None:
        """The hash that is the secret's, if one of them is.

        With ``turn_needed``, a bcrypt hash is compared in a turn of the doubted secrets.
        """
        matched: str | None = None
        for stored in hashes:
            if self._peppers.matches(stored, owner, secret):
                matched = stored
        for stored in hashes:
            if stored is None or matched is not None or self._peppers.knows(stored):
                continue
            if not is_legacy(stored):
                _log.error("secret_hash_unreadable", owner=owner)
                continue
            async with self.doubted.wait_for_turn(org_id) if turn_needed else nullcontext():
                if await self._legacy.matches(org_id, stored, secret):
                    matched = stored
        return matched
