"""Calls that are allowed while the service can't be reached, if the app chose that.

- ``allow`` requires a known model.
- ``allow-within`` also requires that the call fits into an allowance and what the budgets had left.

Usage is recorded with a tag later. A call that the service itself last refused is denied.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from pricekeeper.bedrock import AUTO, answers_with_text
from pricekeeper.client.answers import AS_ASKED, Authorization
from pricekeeper.client.configuration import KeeperSettings
from pricekeeper.client.memory import Known, Memory
from pricekeeper.client.snapshot import Snapshot, is_model_id
from pricekeeper.client.spool import SpoolEntry
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.settings import CLIENT_UNAVAILABLE_MODELS
from pricekeeper.tags import BLIND_TAG
from pricekeeper.values import new_request_id

OPEN_MAX: Final = 10_000
"""Blind calls known by id; further ones push out the oldest, or are denied (``allow-within``)."""
MODELS_MAX: Final = 256
"""Known spellings of models; then the oldest is forgotten."""
PROMPT_TOKENS_MAX: Final = 1_000_000
"""Most models' window, for longer or unknown prompts."""
LOCK_TRIES: Final = 50
LOCK_PAUSE_MS: Final = 2

_log = logging.getLogger("pricekeeper")


class BlindCalls:
    """The blind calls of one process, on one event loop."""

    def __init__(self, configuration: KeeperSettings, clock: Clock, memory: Memory) -> None:
        self._configuration = configuration
        self._clock = clock
        self._memory = memory
        self._snapshot: Snapshot | None = None
        self._is_refused = False
        self._labels: BoundedCache[str, str] = BoundedCache(MODELS_MAX)
        self._open: BoundedCache[str, tuple[Authorization, Mapping[str, str]]] = BoundedCache(
            OPEN_MAX
        )
        self._untold: dict[str, int] = {}
        """Maximum cost of each blind call that no snapshot includes yet."""
        self._untold_usd_micros = 0
        self._told: set[str] = set()
        """Those that the service knows by now."""
        self._has_explained = False

    @property
    def is_ready(self) -> bool:
        return self._snapshot is not None

    def note_authorization(self, model: str, authorization: Authorization) -> None:
        """Note what an authorization says about the model and the budgets."""
        if authorization.reason == AS_ASKED and is_model_id(model):
            self._labels.put(model, authorization.label)
        if self._snapshot is not None and authorization.answer is not None:
            self._snapshot = self._snapshot.after(authorization.answer.budgets)

    def note_told(self, entries: Sequence[SpoolEntry]) -> None:
        self._told.update(one.id for one in entries if one.id in self._untold)

    def told_so_far(self) -> frozenset[str]:
        """The blind calls that a snapshot read from now on includes."""
        return frozenset(self._told)

    async def learn(self, snapshot: Snapshot, told: frozenset[str]) -> None:
        """Note what the service allows, in a snapshot that includes these calls."""
        self._untold_usd_micros -= sum(self._untold.pop(one, 0) for one in told)
        self._told -= told
        asked = {model: self._labels.peek(model) or "" for model in self._labels}
        self._is_refused = False
        self._snapshot = msgspec.structs.replace(snapshot, labels={**asked, **snapshot.labels})
        await self._remember(self._snapshot, is_refused=False)

    async def learn_refusal(self, *, of_app: bool) -> None:
        """Note that the service refuses the whole app, or only these credentials."""
        self._is_refused, self._snapshot = True, None
        if of_app:
            await self._remember(None, is_refused=True)

    async def allow(
        self, model: str, input_tokens: int, max_output_tokens: int, tags: Mapping[str, str]
    ) -> Authorization | None:
        """Allow a call without the service, if the app chose that and enough is known."""
        chosen = self._configuration.on_unavailable
        if chosen == "deny" or self._is_refused:
            return None
        known = self._memory.read()
        snapshot = self._snapshot or known.snapshot
        if known.is_refused and self._snapshot is None:
            return None
        found = self._find(snapshot, model)
        if found is None:
            self._explain(model)
            return None
        if max_output_tokens and not answers_with_text(found[1]):
            if model == AUTO:
                return None
            max_output_tokens = 0  # as the service grants it
        allowed = self._allowed(*found, max_output_tokens)
        if chosen == "allow-within" and not (
            snapshot and await self._take(snapshot, allowed, input_tokens)
        ):
            return None
        _log.warning("a call of %s is allowed without the price keeper", allowed.label)
        self._open.put(allowed.id, (allowed, tags))
        return allowed

    def settled(self, authorization_id: str, usage: Mapping[str, Any]) -> SpoolEntry | None:
        found = self._open.get(authorization_id)
        return None if found is None else self.entry(found[0], usage, found[1])

    def entry(
        self, allowed: Authorization, usage: Mapping[str, Any], tags: Mapping[str, str] | None
    ) -> SpoolEntry:
        now_ms = self._clock.now_ms()
        body = {
            "model_label": allowed.label,
            "timestamp": rfc3339(now_ms),
            **usage,
            "tags": {**(tags or {}), **usage.get("tags", {}), BLIND_TAG: "true"},
        }
        return SpoolEntry("usage", allowed.id, body, now_ms)

    def is_open(self, authorization_id: str) -> bool:
        return authorization_id in self._open

    def _find(self, snapshot: Snapshot | None, model: str) -> tuple[str, str] | None:
        """The label and id of a model. An unknown label is replaced by the id until it is known."""
        found = None if snapshot is None else snapshot.find(model)
        if found is not None:
            return found
        model = self._configuration.unavailable_models.get(model, model)
        return (self._labels.get(model) or model, model) if is_model_id(model) else None

    def _allowed(self, label: str, model_id: str, max_output_tokens: int) -> Authorization:
        return Authorization(
            new_request_id(self._clock.now_ms()),
            label=label,
            model_id=model_id,
            reason="UNAVAILABLE",
            held_usd_micros=0,
            max_output_tokens=max_output_tokens,
            expires_at="",
            is_blind=True,
        )

    async def _take(self, snapshot: Snapshot, allowed: Authorization, input_tokens: int) -> bool:
        """Take the maximum cost from the allowance and the budgets' rest."""
        most = allowed.max_output_tokens
        prompt = min(input_tokens, PROMPT_TOKENS_MAX)
        worst = snapshot.worst_case_usd_micros(allowed.label, prompt, most)
        if worst is None or len(self._untold) >= OPEN_MAX:
            return False
        for _ in range(LOCK_TRIES):
            with self._memory.locked() as is_ours:
                if is_ours:
                    return self._take_locked(worst, allowed.id)
            await self._clock.sleep_ms(LOCK_PAUSE_MS)
        _log.warning("another process holds the lock of the allowance: the call is denied")
        return False

    def _take_locked(self, worst: int, call_id: str) -> bool:
        known, limit = self._memory.read(), self._configuration.allowance_usd_micros or 0
        own = None if self._snapshot is None else self._snapshot.remaining_usd_micros
        if own is not None and self._untold_usd_micros + worst > own:
            return False
        shared = known.snapshot
        if shared is not None and shared.remaining_usd_micros is not None:
            if worst > shared.remaining_usd_micros:
                return False
            shared = shared.with_at_most(shared.remaining_usd_micros - worst)
        allowance = known.allowance.take(worst, limit, self._clock.now_ms())
        if allowance is None:
            return False
        self._untold[call_id] = worst
        self._untold_usd_micros += worst
        self._memory.write(msgspec.structs.replace(known, snapshot=shared, allowance=allowance))
        return True

    async def _remember(self, snapshot: Snapshot | None, *, is_refused: bool) -> None:
        """Store the snapshot for other processes, less this one's spend since."""
        if snapshot is not None and snapshot.remaining_usd_micros is not None:
            left = snapshot.remaining_usd_micros - self._untold_usd_micros
            snapshot = snapshot.with_at_most(left)
        for _ in range(LOCK_TRIES):
            with self._memory.locked() as is_ours:
                if is_ours:
                    allowance = self._memory.read().allowance
                    self._memory.write(Known(snapshot, is_refused, allowance))
                    return
            await self._clock.sleep_ms(LOCK_PAUSE_MS)

    def _explain(self, model: str) -> None:
        if not self._has_explained:
            self._has_explained = True
            _log.warning(
                "calls of %r can't be allowed without the price keeper: no process of this app has "
                "reached it yet, so its model id is unknown; use a model id, or set %s",
                model,
                CLIENT_UNAVAILABLE_MODELS,
            )


def rfc3339(epoch_ms: int) -> str:
    """A time as the REST contract writes it."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
