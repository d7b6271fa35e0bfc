"""One model call inside its budget: which model, may I, and what it used, in one block.

::

    async with keeper.call({"rpm": 1, "tpm": 4_000}) as call:
        reply = bedrock.converse(modelId=call.model_id, messages=messages)
        call.used(reply)

On the way in it asks which model to use and takes the tokens; `QuotaSpentError` and
`RateLimitedError` say why not, and until when. On the way out it records the usage once, and
settles the lease to the tokens that were really used.

A block is for one call of a model. If it fails before it has said what was used, then what Bedrock
bills is known in one case only: Bedrock itself refused the call before any output (see
`client.refusals`), and the tokens are given back. In every other case the usage is unknown: the
tokens stay taken, `ModelCall.usage_unknown` is set, the error carries a note that says so, and
what `ModelCall.at_most` has named is recorded as an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypedDict, Unpack

from pricekeeper.bedrock.refusals import is_free_refusal
from pricekeeper.client.answers import Captured, Recorded, Selection
from pricekeeper.client.errors import ServiceError
from pricekeeper.errors import InvalidValueError

TOKENS: Final = "tpm"
"""The limit that is settled to the tokens that were used, if a call takes from it."""
_PERMILLE: Final = 1000


class UsageFields(TypedDict, total=False):
    """What a usage record may say beside its label and tokens; as the REST contract has it."""

    cache_read_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    service_tier: str
    batch: bool
    bedrock_model_id: str
    calling_region: str
    status: str
    timestamp: str
    tags: dict[str, str]


class AuthorizeFields(TypedDict, total=False):
    """What a request for an authorization may say beside its tokens and its model."""

    fallback: bool
    cache_write: str
    service_tier: str
    batch: bool
    consume: dict[str, int]
    tags: dict[str, str]
    allow_lower_max_output: bool
    min_output_tokens: int
    hold_secs: int


class Keeper(Protocol):
    """What a call, a lease and an authorization need of `client.api.Api`."""

    async def select(self) -> Selection:
        """The model to call now."""
        ...

    async def acquire(self, resource: str, consume: Mapping[str, int]) -> Lease:
        """Take from the buckets of a label, all or nothing."""
        ...

    async def adjust(
        self, lease_id: str, delta: Mapping[str, int], *, adjustment_id: str | None = None
    ) -> None:
        """Settle a lease to what was really used."""
        ...

    async def release(self, lease_id: str) -> None:
        """Give everything back that a lease holds."""
        ...

    async def capture(
        self,
        authorization_id: str,
        input_tokens: int,
        output_tokens: int,
        **more: Unpack[UsageFields],
    ) -> Captured:
        """Count what an authorized call used, once."""
        ...

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        """Give everything back that an authorization holds."""
        ...

    async def extend(self, authorization_id: str, hold_secs: int) -> dict[str, Any]:
        """Hold an authorization for longer."""
        ...

    def new_request_id(self) -> str:
        """An id for one call's usage."""
        ...

    async def record(
        self,
        model_label: str,
        input_tokens: int,
        output_tokens: int,
        *,
        request_id: str | None = None,
        **more: Unpack[UsageFields],
    ) -> Recorded:
        """Count what one call used, once."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Tokens that were taken.

    As a context manager it gives them back if Bedrock refused the call inside (`client.refusals`).
    After any other failure it is not known what was used, and they stay taken.
    """

    _keeper: Keeper = field(repr=False)
    id: str
    limits: Mapping[str, Mapping[str, Any]]
    """How each limit stood afterwards: ``remaining``, ``capacity``, ``resets_at``."""

    async def adjust(self, delta: Mapping[str, int], *, adjustment_id: str | None = None) -> None:
        """Take more, or give some back (below 0)."""
        await self._keeper.adjust(self.id, delta, adjustment_id=adjustment_id)

    async def release(self) -> None:
        """Give everything back: the call was never made."""
        await self._keeper.release(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is not None and is_free_refusal(error):
            await self.release()


@dataclass(frozen=True, slots=True)
class Authorization:
    """A call that may be made, and what is held for it.

    ::

        async with await keeper.authorize(prompt_tokens, 500) as allowed:
            reply = bedrock.converse(modelId=allowed.model_id, messages=messages)
            await allowed.used(reply)

    As a context manager it gives everything back if Bedrock refused the call inside
    (`client.refusals`). After any other failure nobody knows what was used: it stays held, and is
    charged at that once it expires, until somebody captures it.
    """

    _keeper: Keeper = field(repr=False)
    id: str | None
    """By which it is settled; ``None``, if it was only tried."""
    label: str
    model_id: str
    reason: str
    held_usd_micros: int
    max_output_tokens: int
    """The longest answer that is held for: the call's ``maxTokens``."""
    expires_at: str
    answer: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, keeper: Keeper, answer: Mapping[str, Any]) -> Self:
        """From the JSON of ``POST /authorizations``."""
        model = answer["model"]
        return cls(
            keeper,
            answer["authorization_id"],
            label=model["label"],
            model_id=model["bedrock_model_id"],
            reason=model["reason"],
            held_usd_micros=answer["held_usd_micros"],
            max_output_tokens=answer["max_output_tokens"],
            expires_at=answer["expires_at"],
            answer=answer,
        )

    async def used(self, reply: Mapping[str, Any]) -> Captured:
        """Capture it with Converse's reply, or the ``metadata`` event of its stream."""
        return await self.capture(**usage_of(reply, self.model_id))

    async def capture(
        self, input_tokens: int, output_tokens: int, **more: Unpack[UsageFields]
    ) -> Captured:
        """Capture it with what was used in numbers; the same again counts once."""
        return await self._keeper.capture(self._given_id, input_tokens, output_tokens, **more)

    async def void(self, *, reason: str | None = None) -> None:
        """Give everything back: the call was never made."""
        await self._keeper.void(self._given_id, reason=reason)

    async def extend(self, hold_secs: int) -> None:
        """Hold it for so long from now, if that is longer."""
        await self._keeper.extend(self._given_id, hold_secs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is not None and is_free_refusal(error):
            await self.void(reason="Bedrock refused the call")

    @property
    def _given_id(self) -> str:
        if self.id is None:
            raise InvalidValueError("authorization_id", "is none: it was only tried")
        return self.id


class ModelCall:
    """A call of a model, from the decision to the bill. Made by `Api.call`."""

    def __init__(self, keeper: Keeper, consume: Mapping[str, int], settle: str) -> None:
        self.request_id = keeper.new_request_id()
        """What the usage is recorded under."""
        self.recorded: Recorded | None = None
        """What it came to, once the block has ended; the upper bound, if the usage is unknown."""
        self.usage_unknown = False
        """Whether the block has ended and nobody knows what Bedrock bills for the call."""
        self._keeper = keeper
        self._consume = dict(consume)
        self._settle = settle
        self._selection: Selection | None = None
        self._lease: Lease | None = None
        self._usage: dict[str, Any] | None = None
        self._most: dict[str, Any] | None = None
        self._never_called = False

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
        self.used_tokens(**usage_of(reply, self.model_id))

    def used_tokens(
        self, input_tokens: int, output_tokens: int, **more: Unpack[UsageFields]
    ) -> None:
        """Say what it used in numbers; what was said last counts."""
        self._usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}

    def used_nothing(self) -> None:
        """Say that the model was not called, so that the tokens are given back."""
        self._never_called = True

    def at_most(self, input_tokens: int, output_tokens: int, **more: Unpack[UsageFields]) -> None:
        """Say before the call what one attempt can use at the most.

        It is recorded if what was used does not become known. ``output_tokens`` is the call's
        ``maxTokens``; a prompt has at most as many tokens as it has bytes in UTF-8.
        """
        self._most = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}

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
        ending = asyncio.ensure_future(self._end(error))
        try:
            await asyncio.shield(ending)
        except ServiceError as failure:
            if error is None:
                raise
            error.add_note(f"and the price keeper could not be told: {failure}")
        if self.usage_unknown:
            self._report_unknown(error)

    async def _end(self, error: BaseException | None) -> None:
        if self._usage is not None:
            self.recorded = await self._keeper.record(
                self.label, **self._usage, request_id=self.request_id
            )
            await self._adjust(self._usage)
        elif self._never_called or (error is not None and is_free_refusal(error)):
            if self._lease is not None:
                await self._lease.release()
        else:
            self.usage_unknown = True
            await self._record_most()

    async def _record_most(self) -> None:
        """Record the upper bound, if there is one: what is not known is not nothing."""
        if self._most is None:
            return
        about = {"bedrock_model_id": self.model_id, "status": "ERROR", **self._most}
        self.recorded = await self._keeper.record(self.label, **about, request_id=self.request_id)

    def _report_unknown(self, error: BaseException | None) -> None:
        """Tell the caller, with an error of our own if there is none to add a note to."""
        if error is None:
            raise InvalidValueError("call", "has not said what it used; say it with call.used()")
        recorded_note = "nothing is recorded, as no upper bound was given with call.at_most()"
        if self.recorded is not None:
            recorded_note = f"its upper bound is recorded as {self.request_id}"
        error.add_note(
            f"what this call used is not known: its tokens stay taken, and {recorded_note}"
        )

    async def _adjust(self, usage: Mapping[str, Any]) -> None:
        """Settle the lease as Bedrock's throttling does.

        It counts input and what was written to a cache once, reads of a cache not at all, and
        each token of the answer as often as the model's burn-down factor says.
        """
        if self._lease is None or self._settle not in self._consume:
            return
        input_fields = ("input_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")
        factor_permille = self.selection.burn_down_factor_permille
        burnt = -(-usage["output_tokens"] * factor_permille // _PERMILLE)
        delta = (
            sum(usage.get(name, 0) for name in input_fields) + burnt - self._consume[self._settle]
        )
        if delta:
            await self._lease.adjust({self._settle: delta})


def usage_of(reply: Mapping[str, Any], model_id: str) -> dict[str, Any]:
    """What a reply of Converse says was used, as a usage record has it."""
    usage = reply["usage"]
    written = usage.get("cacheWriteInputTokens", 0)
    details = usage.get("cacheDetails", ())
    for_an_hour = sum(one["inputTokens"] for one in details if one["ttl"] == "1h")
    found = {
        "input_tokens": usage["inputTokens"],
        "output_tokens": usage["outputTokens"],
        "cache_read_tokens": usage.get("cacheReadInputTokens", 0),
        "cache_write_5m_tokens": written - for_an_hour,
        "cache_write_1h_tokens": for_an_hour,
        "bedrock_model_id": model_id,
    }
    if "serviceTier" in reply:  # what was served, not what was asked for
        found["service_tier"] = reply["serviceTier"]["type"]
    return found
