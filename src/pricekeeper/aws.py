"""Calls AWS services off the hot path, with botocore's own clients, in threads.

botocore is imported on use, because that is slow.

Bounds: `attempts_max` attempts per call, each with `CONNECT_SECS` to connect and ``silence_secs``
without a byte. Callers bound the threads, one per attempt: 64 alert channels, one export, one read
per secret.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff

CONNECT_SECS: Final = 5
MESSAGE_LENGTH_MAX: Final = 500
CHECK_SIGNATURE: Final = "check the credentials and this machine's clock"
SETUP: Final = {
    "NoCredentialsError": (
        "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_PROFILE, or give the machine a role (a local engine takes any made-up pair of "
        "letters and digits)"
    ),
    "NoRegionError": "no AWS region found: set AWS_DEFAULT_REGION",
}
"""What helps against errors that retries can't fix, by botocore's names."""

_BACKOFF: Final = Backoff(200, 5_000)
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z.]{0,63}")
_PASSING: Final = re.compile(r"Throttl|TooManyRequests|SlowDown|RequestTimeout\b|ExpiredToken")
_OLD_KEYS: Final = re.compile(
    r"ExpiredToken|InvalidClientTokenId|UnrecognizedClient|InvalidAccessKeyId|InvalidToken"
)
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_REDIRECTS: Final = range(300, 400)
_Read = TypeVar("_Read")


class AwsCallError(Exception):
    """A call failed; code and message contain no secret.

    ``status`` is 0 if no service answered. ``is_passing``: a retry may succeed.
    """

    def __init__(
        self, code: str, message: str, *, status: int = 0, is_passing: bool = False
    ) -> None:
        super().__init__(f"{code}: {message[:MESSAGE_LENGTH_MAX]}" if message else code)
        self.code = code
        self.status = status
        self.is_passing = is_passing


class AwsClient:
    """A client of one AWS service."""

    def __init__(
        self,
        service: str,
        clock: Clock,
        *,
        attempts_max: int,
        silence_secs: float,
        region: str | None = None,
        endpoint: str | None = None,
        s3: Any = None,
    ) -> None:
        self._service = service
        self._clock = clock
        self._attempts_max = attempts_max
        self._silence_secs = silence_secs
        self._region = region
        self._endpoint = endpoint
        self._s3 = s3
        self._client: Any = None
        self._random = random.Random()  # noqa: S311  # spreads attempts, no secret

    async def call(
        self, operation: str, read: Callable[[dict[str, Any]], _Read], **parameters: Any
    ) -> _Read:
        """Return ``read`` of the reply, run in the thread; raises `AwsCallError`.

        Cancelling does not stop a request under way; closing the file that it sends does.
        """
        loop = asyncio.get_running_loop()
        run = partial(self._attempt, operation, read, parameters)
        attempt = 1
        while True:
            # Not a thread of the event loop: the gateway needs those while a service is silent.
            thread = ThreadPoolExecutor(1, thread_name_prefix="pricekeeper-aws")
            try:
                return await loop.run_in_executor(thread, run)
            except AwsCallError as error:
                if not error.is_passing or attempt >= self._attempts_max:
                    raise
            finally:
                thread.shutdown(wait=False)
            await self._clock.sleep_ms(_BACKOFF.pause_ms(attempt, self._random.randrange))
            attempt += 1

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _attempt(
        self,
        operation: str,
        read: Callable[[dict[str, Any]], _Read],
        parameters: Mapping[str, Any],
    ) -> _Read:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - slow to import
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        try:
            if self._client is None:
                self._client = self._open()
            if rewind := getattr(parameters.get("Body"), "seek", None):
                rewind(0)  # an earlier attempt may have read a part of the file
            return read(getattr(self._client, operation)(**parameters))
        except ClientError as error:
            failure = _refusal(error.response)
            if _OLD_KEYS.match(failure.code):
                self._client = None  # the next attempt looks for newer keys
            raise failure from None  # botocore's error may quote the signed request
        except ResponseParserError as error:
            code, message = type(error).__name__, "the reply is not AWS's; check endpoint and proxy"
            raise AwsCallError(code, message, is_passing=True) from None  # it quotes the reply
        # botocore raises these, too, while it looks for credentials.
        except (BotoCoreError, OSError, RuntimeError, ValueError) as error:
            code = type(error).__name__
            message = SETUP.get(code, str(error))
            raise AwsCallError(code, message, is_passing=code not in SETUP) from error

    def _open(self) -> Any:
        from botocore.config import Config  # noqa: PLC0415
        from botocore.session import Session  # noqa: PLC0415

        config = Config(
            connect_timeout=CONNECT_SECS,
            read_timeout=self._silence_secs,
            retries={"mode": "standard", "total_max_attempts": 1},  # `call` repeats, by our clock
            s3=self._s3,
        )
        # mypy wants a literal for each service name.
        create: Callable[..., Any] = Session().create_client
        client = create(
            self._service, region_name=self._region, endpoint_url=self._endpoint, config=config
        )
        client.meta.events.register("before-parse", _refuse_redirect)
        return client


def echoes_request(code: str) -> bool:
    """Whether messages of that error quote the signed request, with the session token."""
    return "Signature" in code or "AuthenticationToken" in code


def _refuse_redirect(response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise before a redirect: botocore may ask S3 for the bucket's region endlessly."""
    status = response_dict["status_code"]
    if status in _REDIRECTS:
        message = "redirects are not followed; check the endpoint and the region"
        raise AwsCallError(f"HTTP {status}", message, status=status)


def _refusal(response: Mapping[str, Any]) -> AwsCallError:
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    error = response.get("Error", {})
    code, message = str(error.get("Code")), str(error.get("Message") or "")
    if not _CODE.fullmatch(code):  # a number, or the words of something that is not AWS
        code, message = f"HTTP {status}", ""
    if echoes_request(code):
        message = CHECK_SIGNATURE
    is_passing = status >= _SERVER_ERROR or status == _TOO_MANY or bool(_PASSING.match(code))
    return AwsCallError(code, message, status=status, is_passing=is_passing)
