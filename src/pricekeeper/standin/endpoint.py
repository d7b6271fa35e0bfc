"""What every operation of the stand-in has: how it reads, answers, streams and refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pricekeeper.standin.frames import exception_frame
from pricekeeper.standin.prompt import Body, Prompt
from pricekeeper.standin.refusals import AwsFault, exception_body
from pricekeeper.standin.turn import Turn

JSON: Final = b"application/json"
REQUEST_ID: Final = b"x-amzn-requestid"
BROKE_OFF: Final = "the stream broke off, as scripted"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request whose body is JSON."""

    model_id: str
    headers: Mapping[bytes, bytes]
    """With names in small letters."""
    body: Body


@dataclass(frozen=True, slots=True)
class ModelReply:
    """An answer in one piece."""

    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    status: int = 200
    media_type: bytes = JSON


@dataclass(frozen=True, slots=True)
class ModelStream:
    """An answer in many pieces."""

    media_type: bytes
    frames: list[bytes]
    ends_after: int
    """How many frames are sent of a stream that ends in its middle."""
    headers: Sequence[tuple[bytes, bytes]] = ()


class ModelApi(ABC):
    """One operation. Unless it says otherwise, it has AWS's errors, and a model runs for it."""

    name: str
    """The name of the operation, as the ledger has it."""
    is_free = False
    """Whether no model runs for it."""

    @abstractmethod
    def read(self, request: ModelRequest) -> Prompt:
        """What the request asks for; raises `AwsFault` if it can't be understood."""

    @abstractmethod
    def reply(self, turn: Turn) -> ModelReply:
        """The answer in one piece."""

    def stream(self, turn: Turn) -> ModelStream:
        """The answer as a stream."""
        raise NotImplementedError(f"{self.name} is no stream: {turn}")

    def failure(self) -> bytes:
        """What a stream that breaks off has in its middle."""
        body = exception_body("ModelStreamErrorException", BROKE_OFF)
        return exception_frame("modelStreamErrorException", body)

    def refuse(self, refusal: AwsFault) -> ModelReply:
        """The answer to a request for which no model runs."""
        return refuse_as_aws(refusal)


def refuse_as_aws(refusal: AwsFault) -> ModelReply:
    """The error of a REST API in JSON, as every AWS client reads it."""
    body = exception_body(refusal.name, refusal.message)
    return ModelReply(body, [(b"x-amzn-errortype", refusal.name.encode())], refusal.status)
