"""The keyring: which key signs, which keys verify, and which are published.

Each key signs from its second until the next one does. It verifies until its last access token has
expired, and opens refresh tokens until the last one that it derived has. It has an EC key for
access tokens, with a published public part, and a secret for refresh tokens and `aws_credentials`.
"""

from __future__ import annotations

import base64
import secrets
from typing import Any, Final, Literal, TypeAlias

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from pricekeeper.errors import KeyringError
from pricekeeper.sessions import REFRESH_TOKEN_SECS_MAX, RefreshKey

ALGORITHM: Final = "ES256"
CURVE: Final = "P-256"
TOKEN_TYPE: Final = "at+jwt"  # noqa: S105 - the kind of token, RFC 9068
ACCESS_SECS: Final = 3_600
SKEW_SECS: Final = 30
"""The largest difference between the clocks of two instances."""
KEYS_MAX: Final = 32

_REFRESH_SECRET_BYTES: Final = 32


Jwks: TypeAlias = dict[str, list[dict[str, Any]]]
"""A set of public keys, RFC 7517."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored form of a key."""

    kid: str
    active_from_epoch: int
    signing: dict[str, str]
    refresh: str

    def __repr__(self) -> str:
        return f"KeyEntry(kid={self.kid!r}, active_from_epoch={self.active_from_epoch})"


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    keys: tuple[KeyEntry, ...]


class TokenKey:
    """A parsed key."""

    __slots__ = ("active_from_epoch", "header", "kid", "private", "public", "refresh")

    def __init__(self, entry: KeyEntry) -> None:
        try:
            self.private = ECKey.import_key({**entry.signing, "kid": entry.kid})
            self.public = ECKey.import_key(self.private.as_dict(private=False))
            secret = base64.urlsafe_b64decode(entry.refresh)
        except (JoseError, ValueError, KeyError) as error:
            raise KeyringError(f"key {entry.kid!r} is malformed") from error
        if not self.private.is_private or self.private.curve_name != CURVE:
            raise KeyringError(f"key {entry.kid!r} is not a private {CURVE} key")
        if self.private.thumbprint() != entry.kid:
            raise KeyringError(f"key {entry.kid!r} does not have its thumbprint as its name")
        if len(secret) < _REFRESH_SECRET_BYTES:
            raise KeyringError(f"key {entry.kid!r}: refresh has at least 32 bytes in base64url")
        self.kid = entry.kid
        self.active_from_epoch = entry.active_from_epoch
        self.refresh = RefreshKey(entry.kid, secret)
        self.header = {"typ": TOKEN_TYPE, "alg": ALGORITHM, "kid": entry.kid}

    @property
    def header_segment(self) -> str:
        encoded = base64.urlsafe_b64encode(msgspec.json.encode(self.header))
        return encoded.rstrip(b"=").decode()

    @property
    def jwk(self) -> dict[str, Any]:
        named = {"kid": self.kid, "use": "sig", "alg": ALGORITHM}
        return {**self.public.as_dict(private=False), **named}


class Keyring:
    """An immutable list of keys, in the order in which they begin to sign."""

    def __init__(self, entries: tuple[KeyEntry, ...]) -> None:
        if not 1 <= len(entries) <= KEYS_MAX:
            raise KeyringError(f"a keyring has 1 to {KEYS_MAX} keys, not {len(entries)}")
        self.entries = tuple(sorted(entries, key=lambda entry: entry.active_from_epoch))
        self._keys = [TokenKey(entry) for entry in self.entries]
        self._by_header = {key.header_segment: key for key in self._keys}
        self._by_kid = {key.kid: key for key in self._keys}
        if len(self._by_kid) < len(self._keys):
            raise KeyringError("a key is in the keyring twice")

    def signing(self, now_epoch: int) -> TokenKey:
        """The present key; the first one if the clock is behind all keys."""
        due = [key for key in self._keys if key.active_from_epoch <= now_epoch]
        return due[-1] if due else self._keys[0]

    def verifying(self, header_segment: str, now_epoch: int) -> TokenKey | None:
        """The key of tokens with this first part, while one of them may be valid."""
        key = self._by_header.get(header_segment)
        return key if key is not None and self._is_published(key, now_epoch) else None

    def refreshing(self, kid: str, now_epoch: int) -> RefreshKey | None:
        """The key of refresh tokens with this name, while one of them may be valid."""
        key = self._by_kid.get(kid)
        if key is None or now_epoch >= self._retired_epoch(key) + _REFRESH_TAIL_SECS:
            return None
        return key.refresh

    def jwks(self, now_epoch: int) -> Jwks:
        """All public keys that a verifier may need, including those that will sign soon."""
        return {"keys": [key.jwk for key in self._keys if self._is_published(key, now_epoch)]}

    def rotated(self, now_epoch: int, ahead_secs: int) -> Keyring:
        kept = tuple(
            key_entry
            for key_entry, key in zip(self.entries, self._keys, strict=True)
            if now_epoch < self._retired_epoch(key) + _REFRESH_TAIL_SECS
        )
        last = max(entry.active_from_epoch for entry in self.entries)
        if len(kept) >= KEYS_MAX:
            raise KeyringError(f"{KEYS_MAX} keys are still needed; rotate again later")
        return Keyring((*kept, new_entry(max(now_epoch + ahead_secs, last + 1))))

    def _retired_epoch(self, key: TokenKey) -> int:
        index = self._keys.index(key) + 1
        return self._keys[index].active_from_epoch if index < len(self._keys) else _NEVER

    def _is_published(self, key: TokenKey, now_epoch: int) -> bool:
        return now_epoch < self._retired_epoch(key) + _ACCESS_TAIL_SECS


_NEVER: Final = 2**62
_ACCESS_TAIL_SECS: Final = ACCESS_SECS + 2 * SKEW_SECS
_REFRESH_TAIL_SECS: Final = REFRESH_TOKEN_SECS_MAX + 2 * SKEW_SECS


def new_entry(active_from_epoch: int) -> KeyEntry:
    """Make a random key."""
    key = ECKey.generate_key(CURVE)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_REFRESH_SECRET_BYTES))
    private = {name: str(value) for name, value in key.as_dict(private=True).items()}
    return KeyEntry(key.thumbprint(), active_from_epoch, private, secret.decode())


def new_keyring(now_epoch: int) -> Keyring:
    """A keyring with one key, which signs now."""
    return Keyring((new_entry(now_epoch),))


def parse_keyring(text: str | bytes) -> Keyring:
    """Parse the text of `dump_keyring`; an error shows no keys."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KeyringError("the keyring is not JSON of the documented shape") from error
    return Keyring(document.keys)


def dump_keyring(keyring: Keyring) -> bytes:
    """The keyring as text, with its secrets."""
    return msgspec.json.format(msgspec.json.encode(_Document(1, keyring.entries)), indent=2) + b"\n"
