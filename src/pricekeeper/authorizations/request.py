"""What a caller asks for before a call, and the rules that it must keep."""

from __future__ import annotations

import msgspec

from pricekeeper.authorizations.authorization import (
    parse_id,
)
from pricekeeper.bedrock import AUTO, CacheWrite
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering.usage import fingerprint as fingerprint_of
from pricekeeper.pricing import TOKENS_MAX
from pricekeeper.tags import check_tags
from pricekeeper.wire.bounds import CONSUME_MAX, HOLD_SECS_DEFAULT, HOLD_SECS_RANGE


class AuthorizationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that is about to be made."""

    input_tokens: int
    """An upper bound of the whole prompt."""
    max_output_tokens: int
    authorization_id: str | None = None
    model: str = AUTO
    fallback: bool | None = None
    among: tuple[str, ...] = ()
    """The labels that `AUTO` may take; empty is any of them."""
    cache_write: CacheWrite = CacheWrite.NONE
    service_tier: str | None = None
    batch: bool = False
    uses: tuple[str, ...] = ()
    """What Bedrock bills beside tokens; the deployment file has to have a price for it."""
    window_tokens: int = 0
    """The window that the call asks for, if it asks for a longer one than the model has without."""
    consume: dict[str, int] | None = None
    tags: dict[str, str] = {}
    allow_lower_max_output: bool = False
    min_output_tokens: int = 1
    hold_secs: int = HOLD_SECS_DEFAULT
    dry_run: bool = False
    by_gateway: bool = False
    """Whether the gateway makes the call. Then nobody else says what it has used."""

    @property
    def may_fall_back(self) -> bool:
        """Whether labels further down the ordering may be taken."""
        return self.model == AUTO if self.fallback is None else self.fallback

    def longest_answer(self, cap: int | None) -> int:
        """The longest answer to reserve for, lowered to ``cap`` if the caller allows it.

        Raises `InvalidValueError` if it may not be lowered: a caller that makes the call itself
        would get a longer answer than was reserved. The gateway has lowered it already.
        """
        asked, least = self.max_output_tokens, self.least_output_tokens
        if cap is None or asked <= cap or self.by_gateway:
            return asked
        if least is None:
            raise InvalidValueError(
                "max_output_tokens",
                f"must be {cap} at most, the app's max_output_tokens_cap; or set allow_lower_max_"
                "output, and call the model with the max_output_tokens of the answer",
            )
        if least > cap:
            raise InvalidValueError(
                "min_output_tokens", f"must be {cap} at most, the app's max_output_tokens_cap"
            )
        return cap

    @property
    def least_output_tokens(self) -> int | None:
        """Down to how long an answer it may be fitted into what is left."""
        if not self.allow_lower_max_output:
            return None
        return min(self.min_output_tokens, self.max_output_tokens)


def checked(request: AuthorizationRequest) -> AuthorizationRequest:
    """The request with its id in canonical form; raises `InvalidValueError` naming a bad field."""
    _check_whole("input_tokens", request.input_tokens, 0, TOKENS_MAX)
    _check_whole("max_output_tokens", request.max_output_tokens, 0, TOKENS_MAX)
    _check_whole("min_output_tokens", request.min_output_tokens, 0, TOKENS_MAX)
    check_hold_secs(request.hold_secs)
    if request.consume is not None:
        if len(request.consume) > CONSUME_MAX:
            raise InvalidValueError("consume", f"must have at most {CONSUME_MAX} limits")
        for name, count in request.consume.items():
            _check_whole(f"consume.{name[:64]}", count, 0, TOKENS_MAX)
    if request.tags:
        check_tags(request.tags)
    if request.authorization_id is None:
        return request
    canonical = parse_id(request.authorization_id)
    return msgspec.structs.replace(request, authorization_id=canonical)


def check_hold_secs(hold_secs: int) -> None:
    """Raise `InvalidValueError` for a hold that is too short or too long."""
    _check_whole("hold_secs", hold_secs, *HOLD_SECS_RANGE)


def fingerprint(client_id: str, request: AuthorizationRequest) -> bytes:
    """Equal exactly for the same request of the same client, whatever its id."""
    body = request
    if request.authorization_id is not None or request.dry_run:
        body = msgspec.structs.replace(request, authorization_id=None, dry_run=False)
    return fingerprint_of(client_id, body)


def _check_whole(field: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidValueError(field, f"must be a whole number from {least} to {most}")
