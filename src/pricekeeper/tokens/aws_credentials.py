"""Derives credentials for AWS SDKs from an access token.

An SDK signs with the secret and sends the token along. The secret follows from the token and its
signing key, so any process with the keyring derives it again, and nothing is stored.
"""

from __future__ import annotations

import base64
import hmac
from functools import lru_cache
from typing import Final

import msgspec

from pricekeeper.tokens.access_token import VerifyingKeys
from pricekeeper.tokens.keyring import TokenKey

SECRET_PREFIX: Final = "pkas_"  # noqa: S105 - what every such secret begins with
NAME_PREFIX: Final = "PK"

_REMEMBERED_MAX: Final = 4_096
_KEYS_MAX: Final = 64
_PURPOSE: Final = b"pricekeeper aws credentials 1"
"""Can't collide with a refresh token's seal, whose text begins with a key's name."""


class AwsCredentials(msgspec.Struct, frozen=True):
    """The answer of a container credentials endpoint."""

    access_key_id: str
    secret_access_key: str
    token: str
    expires_at_epoch: int

    def __repr__(self) -> str:
        return f"AwsCredentials(access_key_id={self.access_key_id!r})"


@lru_cache(maxsize=_REMEMBERED_MAX)
def derive_access_key_id(token_id: str) -> str:
    """A token's ``jti`` in letters that AWS SDKs accept."""
    return NAME_PREFIX + base64.b32encode(token_id.encode()).rstrip(b"=").decode()


def derive_secret_access_key(token: str, key: TokenKey) -> str:
    """The secret of a token that this key has signed."""
    own_key = _own_key(key.refresh.secret)
    derived = hmac.digest(own_key, token.encode("utf-8", "surrogatepass"), "sha256")
    return SECRET_PREFIX + base64.urlsafe_b64encode(derived).rstrip(b"=").decode()


@lru_cache(maxsize=_KEYS_MAX)
def _own_key(secret: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE, "sha256")


def find_secret_access_key(token: str, keys: VerifyingKeys) -> str | None:
    """The secret of a token in a request; ``None`` if no key of ours signed it.

    The token itself must be validated separately.
    """
    key = keys.verifying_key(token.partition(".")[0])
    return None if key is None else derive_secret_access_key(token, key)
