"""CountTokens: what Converse or InvokeModel would read. No model runs, and nothing is billed."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

import msgspec

from pricekeeper.standin.converse import read_converse
from pricekeeper.standin.endpoint import ModelApi, ModelReply, ModelRequest
from pricekeeper.standin.families.choosing import family_of
from pricekeeper.standin.prompt import Prompt, object_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

_ONE_OF: Final = "input: must have one of converse and invokeModel"


class CountTokens(ModelApi):
    """The operation."""

    name = "CountTokens"
    is_free = True

    def read(self, request: ModelRequest) -> Prompt:
        given = object_of(request.body, "input")
        if given.keys() == {"converse"}:
            return read_converse(object_of(given, "converse"), streams=False)
        if given.keys() != {"invokeModel"}:
            raise AwsFault("ValidationException", _ONE_OF)
        try:
            raw = b64decode(object_of(given, "invokeModel").get("body", ""), validate=True)
            body = msgspec.json.decode(raw, type=dict[str, Any])
        except (TypeError, ValueError):  # msgspec's errors are among them
            raise AwsFault("ValidationException", "body: must be JSON in base64") from None
        return family_of(request.model_id).read(body)

    def reply(self, turn: Turn) -> ModelReply:
        return ModelReply(b'{"inputTokens":%d}' % turn.tokens.prompt_tokens)
