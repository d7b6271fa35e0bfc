"""Access tokens: what they claim, how they are signed, and every way in which one can be wrong.

The first part of a token must be, to the byte, a header that one of our keys writes. So there is
nothing to negotiate and nothing to parse before the signature is known to be ours: no other
algorithm or type, no ``crit``, no key by address, no name that leads anywhere else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from pricekeeper.authority import Permit
from pricekeeper.tokens.keyring import ALGORITHM, SKEW_SECS, TokenKey

ACCESS_TOKEN_LENGTH_MAX: Final = 2_048

_REGISTRY: Final = JWSRegistry(algorithms=[ALGORITHM])
_GENERATION: Final = "generation-"
"""How the ``sid`` of a token outside the session slots begins; a session's begins with digits."""


class TokenClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an access token says. Integers are seconds since the epoch."""

    iss: str
    sub: str
    aud: str
    exp: int
    iat: int
    jti: str
    sid: str
    """The session; for a token outside the session slots, its client's token generation."""
    org_id: str
    scope: str
    client_id: str
    """The same as ``sub``, as RFC 9068 wants it."""
    app_id: str | None = None
    nbf: int | None = None
    """We never set it, but honour it."""


class Flaw(StrEnum):
    """Why a token is not valid. For the log only: callers do not learn the reason."""

    TOO_LONG = "longer than any of ours"
    UNKNOWN_HEADER = "its header is none of ours"
    BAD_SIGNATURE = "its signature is wrong"
    MALFORMED = "its claims are not of our shape"
    WRONG_ISSUER = "issued by somebody else"
    WRONG_AUDIENCE = "meant for somebody else"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"


FORGERIES: Final = frozenset({Flaw.TOO_LONG, Flaw.UNKNOWN_HEADER, Flaw.BAD_SIGNATURE})
"""The flaws of tokens that we never signed. All other flaws are found behind our own signature."""


class VerifyingKeys(Protocol):
    """The source of the keys that verify tokens."""

    def verifying_key(self, header_segment: str) -> TokenKey | None:
        """The key whose tokens begin like this."""
        ...


def generation_sid(token_generation: str) -> str:
    """The ``sid`` of a token outside the session slots: it ends with this generation."""
    return _GENERATION + token_generation


def generation_in(sid: str) -> str | None:
    """The token generation that a ``sid`` names; ``None`` if it names a session."""
    return sid.removeprefix(_GENERATION) if sid.startswith(_GENERATION) else None


def sign(_: Permit, claims: TokenClaims, key: TokenKey) -> str:
    """Make the token that says this, which takes a permit: see `may_produce`."""
    return jws.serialize_compact(
        key.header, msgspec.json.encode(claims), key.private, registry=_REGISTRY
    )


def verify(
    token: str, keys: VerifyingKeys, *, issuer: str, audience: str, now_epoch: int
) -> TokenClaims | Flaw:
    """What the token says, if it is ours, for us, and in its time."""
    if len(token) > ACCESS_TOKEN_LENGTH_MAX:
        return Flaw.TOO_LONG
    key = keys.verifying_key(token.partition(".")[0])
    if key is None or not token.isascii():
        return Flaw.UNKNOWN_HEADER
    try:
        signed = jws.deserialize_compact(token, key.public, registry=_REGISTRY)
    except JoseError:
        return Flaw.BAD_SIGNATURE
    try:
        claims = _decode(signed.payload)
    except msgspec.DecodeError:
        return Flaw.MALFORMED
    return _flaw(claims, issuer, audience, now_epoch) or claims


def _flaw(claims: TokenClaims, issuer: str, audience: str, now_epoch: int) -> Flaw | None:
    if claims.iss != issuer:
        return Flaw.WRONG_ISSUER
    if claims.aud != audience:
        return Flaw.WRONG_AUDIENCE
    if claims.exp <= now_epoch:
        return Flaw.EXPIRED
    if max(claims.iat, claims.nbf or 0) > now_epoch + SKEW_SECS:
        return Flaw.NOT_YET_VALID
    return None


_decode = msgspec.json.Decoder(TokenClaims).decode
