"""One call with boto3 and with aiobotocore, for promises that are the same for both."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiobotocore.session import get_session
from botocore.config import Config

from pricekeeper import wrap
from wrapping.world import Program

FACES = ["boto3", "aiobotocore"]
SESSION = get_session()
"""One for all tests: it remembers the service's model, which takes long to read."""
REFUSALS = [
    "AccessDeniedException",
    "InternalServerException",
    "ModelErrorException",
    "ModelNotReadyException",
    "ModelTimeoutException",
    "ResourceNotFoundException",
    "ServiceQuotaExceededException",
    "ServiceUnavailableException",
    "ThrottlingException",
    "ValidationException",
]
"""The exceptions that the client has names for."""


@dataclass(frozen=True)
class Outcome:
    """The result of a call."""

    reply: Any
    error: BaseException | None
    is_modelled: bool
    """Whether the error is the one that the client's ``exceptions`` has under its code."""

    @property
    def code(self) -> str:
        """The code of the client's own error."""
        assert self.error is not None, self.reply
        return _code(self.error)


def call(
    face: str,
    program: Program,
    operation: str = "converse",
    *,
    attempts: int = 1,
    read_timeout: float = 20,
    url: str | None = None,
    before: Callable[[Any], object] = lambda _: None,
    **parameters: Any,
) -> Outcome:
    """One call of a wrapped client, with its stream or body read to the end.

    ``before`` gets the events of the client before it is wrapped.
    """
    config = Config(
        read_timeout=read_timeout,
        connect_timeout=5,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    arguments = program.client_arguments(config)
    if url is not None:
        arguments["endpoint_url"] = url
    if face == "boto3":
        return _call(program, operation, arguments, before, parameters)
    return asyncio.run(_call_async(program, operation, arguments, before, parameters))


def _call(
    program: Program,
    operation: str,
    arguments: dict[str, Any],
    before: Callable[[Any], object],
    parameters: dict[str, Any],
) -> Outcome:
    client = program.made(arguments)
    before(client.meta.events)
    wrap(client, program.keeper)
    try:
        reply = getattr(client, operation)(**parameters)
        for name in ("stream", "body"):
            if name in reply:
                body = reply[name]
                reply[name] = body.read() if hasattr(body, "read") else list(body)
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return _failed(client, error)
    return Outcome(reply, None, is_modelled=False)


async def _call_async(
    program: Program,
    operation: str,
    arguments: dict[str, Any],
    before: Callable[[Any], object],
    parameters: dict[str, Any],
) -> Outcome:
    async with SESSION.create_client("bedrock-runtime", **arguments) as client:
        before(client.meta.events)
        wrap(client, program.keeper)
        try:
            reply = await getattr(client, operation)(**parameters)
            for name in ("stream", "body"):
                if name in reply:
                    body = reply[name]
                    is_body = hasattr(body, "read")
                    reply[name] = await body.read() if is_body else [one async for one in body]
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return _failed(client, error)
        return Outcome(reply, None, is_modelled=False)


def _failed(client: Any, error: BaseException) -> Outcome:
    code = _code(error)
    modelled = getattr(client.exceptions, code) if code in REFUSALS else None
    is_modelled = modelled is not None and isinstance(error, modelled)
    return Outcome(None, error.with_traceback(None), is_modelled)


def _code(error: BaseException) -> str:
    response = getattr(error, "response", None) or {}
    code: str = response.get("Error", {}).get("Code", "")
    return code
