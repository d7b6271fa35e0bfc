"""A model call inside its budget, as a block.

::

    with keeper.call(input_tokens=1_200, max_output_tokens=500) as call:
        reply = bedrock.converse(
            modelId=call.model_id,
            messages=messages,
            inferenceConfig={"maxTokens": call.max_output_tokens},
        )
        call.used(reply)

The block authorizes at its start; its usage goes into the spool at its end, without waiting.
Without usage, the hold is returned only if Bedrock refused the call before any output. Otherwise
the bill is unknown: the hold stays, and is charged when it expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from pricekeeper.bedrock import is_free_refusal, usage_of_converse
from pricekeeper.client.answers import Authorization
from pricekeeper.client.engine import Engine
from pricekeeper.client.fields import UsageFields
from pricekeeper.errors import InvalidValueError


class ModelCall:
    """A model call from authorization to settlement."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        authorize: Callable[[], Any],
        input_tokens: int,
        tags: Mapping[str, str],
        *,
        awaits: bool,
    ) -> None:
        """``authorize`` returns an authorization, or an awaitable if it ``awaits``."""
        self._engine = engine
        self._authorize = authorize
        self._awaits = awaits
        self._input_tokens = input_tokens
        self._tags = tags
        self._authorization: Authorization | None = None
        self._usage: dict[str, Any] | None = None
        self._never_called = False
        self.usage_unknown = False
        """Whether the block has ended without usage, so that the bill is unknown."""

    @property
    def authorization(self) -> Authorization:
        if self._authorization is None:
            raise InvalidValueError("call", "is used in a `with` block")
        return self._authorization

    @property
    def label(self) -> str:
        return self.authorization.label

    @property
    def model_id(self) -> str:
        return self.authorization.model_id

    @property
    def max_output_tokens(self) -> int:
        """The longest answer that the hold covers: the call's ``maxTokens``."""
        return self.authorization.max_output_tokens

    def used(self, reply: Mapping[str, Any]) -> None:
        """Report the usage with Converse's reply or an event of its stream."""
        event = reply.get("metadata", reply)
        usage = usage_of_converse(event) if isinstance(event, Mapping) else None
        if usage is not None:
            self._usage = usage.record(self.model_id)

    def used_tokens(
        self, input_tokens: int, output_tokens: int, **more: Unpack[UsageFields]
    ) -> None:
        """Report the usage in numbers; the last report counts."""
        self._usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}

    def used_nothing(self) -> None:
        """Report that the model was not called, so that the hold is returned."""
        self._never_called = True

    def __enter__(self) -> Self:
        if self._awaits:
            raise InvalidValueError("call", "of an AsyncPriceKeeper is used with `async with`")
        self._reset()
        self._authorization = self._authorize()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    async def __aenter__(self) -> Self:
        if not self._awaits:
            raise InvalidValueError("call", "of a PriceKeeper is used with `with`")
        self._reset()
        self._authorization = await self._authorize()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    def _reset(self) -> None:
        """Each block is a call of its own."""
        self._authorization = self._usage = None
        self._never_called = self.usage_unknown = False

    def _end(self, error: BaseException | None) -> None:
        engine, authorization = self._engine(), self.authorization
        if self._usage is not None:
            engine.settle(authorization, self._usage, self._tags)
        elif self._never_called:
            engine.give_back(authorization, "the model was not called")
        elif error is not None and is_free_refusal(error):
            engine.give_back(authorization, "Bedrock refused the call")
        else:
            self.usage_unknown = True
            engine.leave_unknown(authorization, self._input_tokens, self._tags)
            self._report_unknown(error)

    def _report_unknown(self, error: BaseException | None) -> None:
        if error is None:
            raise InvalidValueError("call", "has ended without usage: report it with call.used()")
        error.add_note(
            "the usage of this call is unknown: "
            f"the hold of {self.authorization.id} is charged when it expires"
        )
