"""Estimates how hard a provisioning key is to guess, and refuses public keys.

Each character has the bits of the key's alphabet: 16 characters for hex digits of one case; else 10
for digits, 26 for letters of each case and 2 for others, added up, and at least 64 with both cases.
A repeated piece counts once, a run of `RUN_MIN` equal or consecutive characters as one. Under
`DISTINCT_MIN` different characters there are no bits. Words are not recognised.

One in a million random keys of 32 hex digits fails, one in 50,000 of 22 characters of base64url.
"""

from __future__ import annotations

import string
from math import log2
from typing import Final

from pricekeeper.errors import SettingsError
from pricekeeper.settings import ADMIN_KEY, METRICS_TOKEN, PROVISIONING_KEY

BITS_MIN: Final = 128
RUN_MIN: Final = 8
DISTINCT_MIN: Final = 8
PUBLIC_KEY: Final = "demo-provisioning-key"
"""The key of ``serve --demo``, accepted only on loopback."""
PUBLIC_METRICS_TOKEN: Final = "demo-metrics-token"  # noqa: S105 - no secret, as the key above
HOW_TO_MAKE_ONE: Final = f"export {PROVISIONING_KEY}=$(openssl rand -hex 32)"
HOW_TO_MAKE_A_TOKEN: Final = f"export {METRICS_TOKEN}=$(openssl rand -hex 32)"

_HEX: Final = (frozenset("0123456789abcdef"), frozenset("0123456789ABCDEF"))
_CLASSES: Final = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
_PREFIXES_OF_OURS: Final = ("pka_", "pkp_")
_BASE64: Final = 64
_OTHERS: Final = 2
"""The other characters of base64url; spaces and dashes add no more."""


def require_strong_key(key: str | None, *, public_allowed: bool = False) -> None:
    """Raise `SettingsError` if the key can be guessed; the message shows how to make one."""
    if key is None:
        return
    if key.startswith(_PREFIXES_OF_OURS):
        raise SettingsError(
            PROVISIONING_KEY,
            "is a key that a service has issued, with fewer rights than this one; "
            f"set it as {ADMIN_KEY}, and make another one here: {HOW_TO_MAKE_ONE}",
        )
    if key == PUBLIC_KEY:
        if public_allowed:
            return
        raise _public(PROVISIONING_KEY, HOW_TO_MAKE_ONE)
    bits = estimate_bits(key)
    if bits < BITS_MIN:
        raise SettingsError(
            PROVISIONING_KEY,
            f"has about {bits} bits and needs {BITS_MIN}: 32 random hex digits, or 22 characters "
            f"of base64url; make one: {HOW_TO_MAKE_ONE}",
        )


def refuse_public_token(token: str | None, *, public_allowed: bool = False) -> None:
    """Raise `SettingsError` for the demo's metrics token, where others could use it."""
    if token == PUBLIC_METRICS_TOKEN and not public_allowed:
        raise _public(METRICS_TOKEN, HOW_TO_MAKE_A_TOKEN)


def _public(setting: str, how_to_make_one: str) -> SettingsError:
    return SettingsError(
        setting,
        "is the public one of the demo, valid only for serve --demo on 127.0.0.1; "
        f"make one: {how_to_make_one}",
    )


def estimate_bits(key: str) -> int:
    """The bits of a key by the rule above."""
    characters = set(key)
    if len(characters) < DISTINCT_MIN:
        return 0
    return int(_without_runs(key[: _period(key)]) * log2(_alphabet_size(characters)))


def _alphabet_size(characters: set[str]) -> int:
    if any(characters <= digits for digits in _HEX):
        return len(_HEX[0])
    present = [kind for kind in _CLASSES if characters & set(kind)]
    size = sum(len(kind) for kind in present)
    if characters - set("".join(_CLASSES)):
        size += _OTHERS
    both_cases = {string.ascii_lowercase, string.ascii_uppercase} <= set(present)
    return max(size, _BASE64) if both_cases else size


def _period(text: str) -> int:
    """The length of the repeated piece, or of the text."""
    period = next(n for n in range(1, len(text) + 1) if text.startswith(text[n:]))
    return period if 2 * period <= len(text) else len(text)


def _without_runs(text: str) -> int:
    count = run = 0
    step: int | None = None
    for before, character in zip(" " + text, text, strict=False):
        next_step = ord(character) - ord(before)
        if next_step == step and step in (-1, 0, 1):
            run += 1
        else:
            count += _worth(run)
            step, run = next_step, 1
    return count + _worth(run)


def _worth(run: int) -> int:
    return run if run + 1 < RUN_MIN else 1
