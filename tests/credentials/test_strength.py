"""The bits of a provisioning key, and the keys with which no service starts."""

import base64
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.credentials.strength import (
    BITS_MIN,
    PUBLIC_KEY,
    PUBLIC_METRICS_TOKEN,
    estimate_bits,
    refuse_public_token,
    require_strong_key,
)
from pricekeeper.errors import SettingsError


def random_keys(kind: str, count: int) -> list[str]:
    """Keys as tools make them, the same ones each time."""
    source = random.Random(kind)
    made = []
    for _ in range(count):
        raw = source.randbytes(16)
        encoded = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        made.append(raw.hex() if kind == "hex" else encoded)
    return made


@pytest.mark.parametrize(("kind", "bits"), [("hex", 128), ("base64url", 132)])
def test_random_keys_of_128_bits_pass(kind: str, bits: int) -> None:
    """As ``openssl rand -hex 16`` and ``secrets.token_urlsafe(16)`` make them."""
    keys = random_keys(kind, 2_000)
    assert {estimate_bits(key) for key in keys} <= {bits}
    for key in keys:
        require_strong_key(key)
        assert estimate_bits(key[:-1]) < bits


@pytest.mark.parametrize(
    "key",
    [
        "",
        "short",
        "a" * 64,
        "ab" * 32,
        "0123456789abcdef",
        "0123456789abcdef" * 2,
        "abcdefghijklmnopqrstuvwxyz0123456789",
        "ponmlkjihgfedcba9876543210",
        "changeme-changeme-changeme-changeme",
        "aaaaaaaabbbbbbbbccccccccddddddddeeeeeeeeffffffffgggggggghhhhhhhh",
        "test-provisioning-key",
        "12345678901234567890123456789012345678",
        "8f14e45fceea167a5a36dedd4bea254",
    ],
    ids=lambda key: key[:20],
)
def test_a_key_that_can_be_guessed_is_refused(key: str) -> None:
    """The message has the number, and a command that makes a better one."""
    assert estimate_bits(key) < BITS_MIN
    with pytest.raises(SettingsError, match=r"PRICEKEEPER_PROVISIONING_KEY.*openssl rand -hex 32"):
        require_strong_key(key)


def test_the_demos_key_is_refused() -> None:
    """But the demo may have its own, and there may be none: then keys of the store open."""
    with pytest.raises(SettingsError, match="openssl rand -hex 32"):
        require_strong_key(PUBLIC_KEY)
    require_strong_key(None)
    require_strong_key(PUBLIC_KEY, public_allowed=True)
    with pytest.raises(SettingsError):
        require_strong_key("weak", public_allowed=True)


@pytest.mark.parametrize("prefix", ["pka_", "pkp_"])
def test_a_key_that_a_service_has_issued_is_refused(prefix: str) -> None:
    """In the wrong variable, a key for reading would open everything."""
    with pytest.raises(SettingsError, match="PRICEKEEPER_ADMIN_KEY") as refused:
        require_strong_key(prefix + "0RkYpZs9QbTd" * 5)
    assert "0RkYpZs9QbTd" not in str(refused.value)


def test_the_demos_metrics_token_is_refused() -> None:
    """But the demo may have its own, and there may be none."""
    with pytest.raises(SettingsError, match=r"PRICEKEEPER_METRICS_TOKEN=\$\(openssl rand -hex 32"):
        refuse_public_token(PUBLIC_METRICS_TOKEN)
    refuse_public_token(PUBLIC_METRICS_TOKEN, public_allowed=True)
    refuse_public_token("a-token-of-ones-own")
    refuse_public_token(None)


@given(st.text(string.printable, max_size=200))
def test_repeating_a_key_does_not_make_it_stronger(key: str) -> None:
    """Nor does any text end in an error; it never counts more than its characters could."""
    assert estimate_bits(key + key) <= max(estimate_bits(key), len(key) * 7)
    assert 0 <= estimate_bits(key) <= len(key) * 7
    if len(set(key)) >= 8:
        assert estimate_bits(key * 3) == estimate_bits(key * 2)
