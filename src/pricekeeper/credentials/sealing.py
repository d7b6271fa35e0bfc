"""Seals secrets that must be readable again, such as the address of a webhook.

Authenticated encryption (JWE, ``dir`` with A256GCM) under a key derived from the pepper: a stolen
table is worthless. The sealed text names its owner, so a copy elsewhere can't be opened. Older
peppers open what they sealed.
"""

from __future__ import annotations

import hmac
from typing import Final

import msgspec

from pricekeeper.credentials.peppers import Peppers

_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}
_PURPOSE: Final = b"pricekeeper: sealed secrets"


class _Sealed(msgspec.Struct, frozen=True):
    owner: str
    text: str


class Sealer:
    """Seals texts for their owners, and opens them."""

    def __init__(self, peppers: Peppers) -> None:
        self._keys = {
            pepper.version: hmac.digest(pepper.key, _PURPOSE, "sha256") for pepper in peppers.all
        }
        self._version = peppers.current.version

    def seal(self, owner: str, text: str) -> str:
        from joserfc import jwe  # noqa: PLC0415 - slow to import, and seldom needed
        from joserfc.jwk import OctKey  # noqa: PLC0415

        key = OctKey.import_key(self._keys[self._version])
        plain = msgspec.json.encode(_Sealed(owner, text))
        return jwe.encrypt_compact({**_HEADER, "kid": self._version}, plain, key)

    def unseal(self, owner: str, sealed: str) -> str | None:
        from joserfc import jwe  # noqa: PLC0415
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import OctKey  # noqa: PLC0415

        for key in self._keys.values():
            try:
                opened = jwe.decrypt_compact(sealed, OctKey.import_key(key))
                found = msgspec.json.decode(opened.plaintext or b"", type=_Sealed)
            except (JoseError, ValueError):  # msgspec's errors are ValueErrors, too
                continue
            if found.owner == owner:
                return found.text
        return None
