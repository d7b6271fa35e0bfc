"""One model call inside its budget: which model, may I, and what it used, in one block.

::

    async with keeper.call({"rpm": 1, "tpm": 4_000}) as call:
        reply = bedrock.converse(modelId=call.model_id, messages=messages)
        call.used(reply)

On the way in it asks which model to use and takes the tokens; `QuotaSpentError` and
`RateLimitedError` say why not, and until when. On the way out it records the usage once, and
settles the lease to the tokens that were really used. A block that fails before it has said what
was used gives its tokens back: Bedrock does not bill a call that failed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from pricekeeper.client.answers import Recorded, Selection
from pricekeeper.client.errors import ServiceError
from pricekeeper.errors import InvalidValueError

if TYPE_CHECKING:
    from pricekeeper.client.keeper import Lease, PriceKeeper, UsageFields

TOKENS: Final = "tpm"
"""The limit that is settled to the tokens that were used, if a call takes from it."""


class ModelCall:
    """A call of a model, from the decision to the bill. Made by `PriceKeeper.call`."""

    def __init__(self, keeper: PriceKeeper, consume: Mapping[str, int], settle: str) -> None:
        self.request_id = str(uuid.uuid4())
        """What the usage is recorded under."""
        self.recorded: Recorded | None = None
        """What it came to, once the block has ended."""
        self._keeper = keeper
        self._consume = dict(consume)
        self._settle = settle
        self._selection: Selection | None = None
        self._lease: Lease | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def selection(self) -> Selection:
        """Which model, and why."""
        if self._selection is None:
            raise InvalidValueError("call", "is used in an `async with` block")
        return self._selection

    @property
    def label(self) -> str:
        """The label of the model to call."""
        return self.selection.label

    @property
    def model_id(self) -> str:
        """The id of the model to call, as Bedrock has it."""
        return self.selection.bedrock_model_id

    def used(self, reply: Mapping[str, Any]) -> None:
        """Say what it used with Converse's reply, or the ``metadata`` event of its stream."""
        usage = reply["usage"]
        written = usage.get("cacheWriteInputTokens", 0)
        details = usage.get("cacheDetails", ())
        for_an_hour = sum(one["inputTokens"] for one in details if one["ttl"] == "1h")
        more: UsageFields = {
            "cache_read_tokens": usage.get("cacheReadInputTokens", 0),
            "cache_write_5m_tokens": written - for_an_hour,
            "cache_write_1h_tokens": for_an_hour,
            "bedrock_model_id": self.model_id,
        }
        if "serviceTier" in reply:  # what was served, not what was asked for
            more["service_tier"] = reply["serviceTier"]["type"]
        self.used_tokens(usage["inputTokens"], usage["outputTokens"], **more)

    def used_tokens(
        self, input_tokens: int, output_tokens: int, **more: Unpack[UsageFields]
    ) -> None:
        """Say what it used in numbers; what was said last counts."""
        self._usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}

    async def __aenter__(self) -> Self:
        self._selection = await self._keeper.select()
        if self._consume:
            self._lease = await self._keeper.acquire(self.label, self._consume)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not to be cut short: a call that was made and is not recorded is lost money.
        ending = asyncio.ensure_future(self._end(failed=error is not None))
        try:
            await asyncio.shield(ending)
        except ServiceError as failure:
            if error is None:
                raise
            error.add_note(f"and the price keeper could not be told: {failure}")

    async def _end(self, *, failed: bool) -> None:
        if self._usage is not None:
            self.recorded = await self._keeper.record(
                self.label, **self._usage, request_id=self.request_id
            )
            await self._adjust(self._usage)
        elif not failed:
            raise InvalidValueError("call", "has not said what it used; say it with call.used()")
        elif self._lease is not None:
            await self._lease.release()

    async def _adjust(self, usage: Mapping[str, Any]) -> None:
        """Settle the lease: Bedrock counts what it read, wrote to a cache, and answered."""
        if self._lease is None or self._settle not in self._consume:
            return
        counted = (
            "input_tokens",
            "output_tokens",
            "cache_write_5m_tokens",
            "cache_write_1h_tokens",
        )
        delta = sum(usage.get(name, 0) for name in counted) - self._consume[self._settle]
        if delta:
            await self._lease.adjust({self._settle: delta})
