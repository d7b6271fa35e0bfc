"""How hard a provisioning key is to guess, as far as the key itself shows, and what is public.

The rule, which `docs/operations.md` states too: each character counts as many bits as its alphabet
gives, and the alphabet is that of the characters that are there: 16 for hex digits of one case;
else 10 for digits, 26 for letters of one case, 2 for any other characters, added up; and 64 at
least where both cases are. What repeats does not count: a key that is one piece over and over
counts as that piece, a run of `RUN_MIN` or more equal or consecutive characters (``aaaaaaaa``,
``01234567``) counts as one character, and a key of fewer than `DISTINCT_MIN` different characters
counts as nothing.

Random keys of 32 hex digits pass, but for one in a million, and so do those of 22 characters of
base64url, but for one in 50,000 that has no capital or no small letter. Whether a key was made of
words nobody can tell from here.
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
"""The key of ``serve --demo``. Everybody knows it, so nothing but the demo on loopback takes it."""
PUBLIC_METRICS_TOKEN: Final = "demo-metrics-token"  # noqa: S105 - no secret, as the key above
HOW_TO_MAKE_ONE: Final = f"export {PROVISIONING_KEY}=$(openssl rand -hex 32)"
HOW_TO_MAKE_A_TOKEN: Final = f"export {METRICS_TOKEN}=$(openssl rand -hex 32)"

_HEX: Final = (frozenset("0123456789abcdef"), frozenset("0123456789ABCDEF"))
_CLASSES: Final = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
_PREFIXES_OF_OURS: Final = ("pka_", "pkp_")
_BASE64: Final = 64
_OTHERS: Final = 2
"""What base64url has beside letters and digits; blanks and dashes between words are no more."""


def require_strong_key(key: str | None, *, public_allowed: bool = False) -> None:
    """Refuse to start with a key that could be guessed; the message shows how to make one.

    Without any the service is administered with the keys in its store.
    """
    if key is None:
        return
    if key.startswith(_PREFIXES_OF_OURS):
        raise SettingsError(
            PROVISIONING_KEY,
            "is a key that a service has issued, which may do less than this one would; "
            f"show it with {ADMIN_KEY}, and make another here: {HOW_TO_MAKE_ONE}",
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
    """Refuse to start with the demo's metrics token, where others could read with it."""
    if token == PUBLIC_METRICS_TOKEN and not public_allowed:
        raise _public(METRICS_TOKEN, HOW_TO_MAKE_A_TOKEN)


def _public(setting: str, how_to_make_one: str) -> SettingsError:
    return SettingsError(
        setting,
        "is the demo's, which is public: it is good for serve --demo on 127.0.0.1 alone; "
        f"make one: {how_to_make_one}",
    )


def estimate_bits(key: str) -> int:
    """How many bits a key has at most, by the rule above."""
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
    """The length of the piece that the text repeats; its own length if it repeats none.

    The border table of Knuth, Morris and Pratt: linear in the length.
    """
    borders = [0] * len(text)
    for index in range(1, len(text)):
        border = borders[index - 1]
        while border and text[index] != text[border]:
            border = borders[border - 1]
        borders[index] = border + (text[index] == text[border])
    period = len(text) - borders[-1]
    return period if 2 * period <= len(text) else len(text)


def _without_runs(text: str) -> int:
    """How many characters there are, with each long run of the same step counted as one."""
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
