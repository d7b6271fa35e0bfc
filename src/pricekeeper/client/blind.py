"""Calls that are allowed while the service can't be reached, if that was chosen.

``allow`` lets every call through whose model is known, ``allow-within`` those that fit into an
allowance. What they use is recorded with a tag that says so, when the service is back. Nothing is
allowed that the service itself refused when it was last asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pricekeeper.client.allowance import Allowance, Snapshot
from pricekeeper.client.answers import Authorization
from pricekeeper.client.configuration import Configuration
from pricekeeper.client.spool import Entry
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.values import new_request_id

BLIND_TAG: Final = "pricekeeper-blind"
"""The tag of usage that was allowed while the service could not be reached."""
OPEN_MAX: Final = 10_000
"""How many blind calls are known by their id; the oldest is forgotten for one more."""

_log = logging.getLogger("pricekeeper")


class BlindCalls:
    """What one process has allowed without the service, and may allow. Lives on one loop."""

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        self._configuration = configuration
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._allowance = Allowance(configuration.allowance_usd_micros or 0)
        self._open: BoundedCache[str, tuple[Authorization, Mapping[str, str]]] = BoundedCache(
            OPEN_MAX
        )

    @property
    def is_ready(self) -> bool:
        """Whether enough is known to allow anything."""
        return self._snapshot is not None

    def learn(self, snapshot: Snapshot | None) -> None:
        """Note what the service allows now; ``None`` if it allows nothing."""
        self._snapshot = snapshot
        self._allowance.note_snapshot()

    def allow(
        self, model: str, input_tokens: int, max_output_tokens: int, tags: Mapping[str, str]
    ) -> Authorization | None:
        """A call without the service, if that was chosen and enough is known for it."""
        chosen, snapshot = self._configuration.on_unavailable, self._snapshot
        found = None if snapshot is None else snapshot.find(model)
        if chosen == "deny" or snapshot is None or found is None:
            return None
        label, model_id = found
        worst = snapshot.worst_case_usd_micros(model_id, input_tokens, max_output_tokens)
        now_ms = self._clock.monotonic_ms()
        if chosen == "allow-within" and (
            worst is None or not self._allowance.take(worst, snapshot.remaining_usd_micros, now_ms)
        ):
            return None
        _log.warning("a call of %s is allowed without the price keeper", label)
        allowed = Authorization(
            new_request_id(self._clock.now_ms()),
            label=label,
            model_id=model_id,
            reason="UNAVAILABLE",
            held_usd_micros=0,
            max_output_tokens=max_output_tokens,
            expires_at="",
            answer={},
            is_blind=True,
        )
        self._open.put(allowed.id, (allowed, tags))
        return allowed

    def settled(self, authorization_id: str, usage: Mapping[str, Any]) -> Entry | None:
        """The entry for what a blind call used, known by its id alone; ``None`` if it is none."""
        found = self._open.get(authorization_id)
        return None if found is None else self.entry(found[0], usage, found[1])

    def entry(
        self, allowed: Authorization, usage: Mapping[str, Any], tags: Mapping[str, str] | None
    ) -> Entry:
        """The entry for what a blind call used: a usage record of its own."""
        now_ms = self._clock.now_ms()
        body = {
            "model_label": allowed.label,
            "timestamp": rfc3339(now_ms),
            **usage,
            "tags": {**(tags or {}), **usage.get("tags", {}), BLIND_TAG: "true"},
        }
        return Entry("usage", allowed.id, body, now_ms)

    def is_open(self, authorization_id: str) -> bool:
        """Whether a blind call has that id."""
        return authorization_id in self._open


def rfc3339(epoch_ms: int) -> str:
    """A moment, as the REST contract writes it."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
