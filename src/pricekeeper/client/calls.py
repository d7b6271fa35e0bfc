"""One model call inside its budget, made by hand, in one block.

::

    with keeper.call(input_tokens=1_200, max_output_tokens=500) as call:
        reply = bedrock.converse(
            modelId=call.model_id,
            messages=messages,
            inferenceConfig={"maxTokens": call.max_output_tokens},
        )
        call.used(reply)

On the way in it asks for an authorization; `DeniedError` says what is in the way. On the way out
the usage goes into the spool, and nobody waits for the service.

If the block ends before it has said what was used, then what Bedrock bills is known in one case
only: Bedrock itself refused the call before any output (see `bedrock.refusals`), and everything is
given back. In every other case what is held stays held, and is charged when it expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from pricekeeper.bedrock.refusals import is_free_refusal
from pricekeeper.bedrock.usage import usage_of_converse
from pricekeeper.client.answers import Authorization
from pricekeeper.client.engine import Engine
from pricekeeper.client.fields import UsageFields
from pricekeeper.errors import InvalidValueError


class ModelCall:
    """A call of a model, from the decision to the bill: for ``with`` and for ``async with``."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        authorize: Callable[[], Any],
        input_tokens: int,
        tags: Mapping[str, str],
        *,
        awaits: bool,
    ) -> None:
        """``authorize`` gives an authorization; where it ``awaits``, something that does."""
        self._engine = engine
        self._authorize = authorize
        self._awaits = awaits
        self._input_tokens = input_tokens
        self._tags = tags
        self._authorization: Authorization | None = None
        self._usage: dict[str, Any] | None = None
        self._never_called = False
        self.usage_unknown = False
        """Whether the block has ended and nobody knows what Bedrock bills for the call."""

    @property
    def authorization(self) -> Authorization:
        """What was decided, and what is held."""
        if self._authorization is None:
            raise InvalidValueError("call", "is used in a `with` block")
        return self._authorization

    @property
    def label(self) -> str:
        """The label of the model to call."""
        return self.authorization.label

    @property
    def model_id(self) -> str:
        """The id of the model to call, as Bedrock has it."""
        return self.authorization.model_id

    @property
    def max_output_tokens(self) -> int:
        """The longest answer that is held for: the call's ``maxTokens``."""
        return self.authorization.max_output_tokens

    def used(self, reply: Mapping[str, Any]) -> None:
        """Say what it used with Converse's reply, or with an event of its stream.

        Every event of a stream may be given: those that don't say it are passed over.
        """
        event = reply.get("metadata", reply)
        usage = usage_of_converse(event) if isinstance(event, Mapping) else None
        if usage is not None:
            self._usage = usage.record(self.model_id)

    def used_tokens(
        self, input_tokens: int, output_tokens: int, **more: Unpack[UsageFields]
    ) -> None:
        """Say what it used in numbers; what was said last counts."""
        self._usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}

    def used_nothing(self) -> None:
        """Say that the model was not called, so that everything is given back."""
        self._never_called = True

    def __enter__(self) -> Self:
        if self._awaits:
            raise InvalidValueError("call", "of an AsyncPriceKeeper is used with `async with`")
        self._begin_anew()
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
        self._begin_anew()
        self._authorization = await self._authorize()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    def _begin_anew(self) -> None:
        """Forget what an earlier block has said: each is a call of its own."""
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
        """Tell the caller, with an error of our own if there is none to add a note to."""
        if error is None:
            raise InvalidValueError("call", "has not said what it used; say it with call.used()")
        error.add_note(
            "what this call used is not known: "
            f"what was held for {self.authorization.id} is charged when it expires"
        )
