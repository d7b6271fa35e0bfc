"""The looks of a secret: recognisable, checked, and silent about itself."""

import secrets
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution import PERMIT
from pricekeeper.credentials.secret import (
    CLIENT_SECRET,
    RETRIEVAL_TOKEN,
    Secret,
    is_mistyped,
    is_well_formed,
    mint,
)

minted = st.binary(min_size=32, max_size=32).map(
    lambda entropy: mint(PERMIT, CLIENT_SECRET, lambda _: entropy).reveal()
)
characters = st.sampled_from(string.ascii_letters + string.digits + "-_ é\ud800")


def test_a_secret_is_recognisable_and_of_one_length() -> None:
    """A prefix for scanners, 43 digits for 256 bits, 6 for the checksum."""
    for entropy in (bytes(32), b"\xff" * 32, secrets.token_bytes(32)):
        text = mint(PERMIT, CLIENT_SECRET, lambda _, entropy=entropy: entropy).reveal()  # type: ignore[misc]
        assert text.startswith("pks_")
        assert len(text) == 4 + 43 + 6
        assert set(text[4:]) <= set(string.ascii_letters + string.digits)


def test_all_256_bits_are_in_it() -> None:
    """Two secrets differ if one bit of their entropy does."""
    seen = {
        mint(PERMIT, CLIENT_SECRET, lambda _, bit=bit: (1 << bit).to_bytes(32)).reveal()  # type: ignore[misc]
        for bit in range(256)
    }
    assert len(seen) == 256


@given(minted)
def test_what_was_minted_is_well_formed(text: str) -> None:
    assert is_well_formed(CLIENT_SECRET, text)
    assert not is_mistyped(CLIENT_SECRET, text)
    assert not is_well_formed(RETRIEVAL_TOKEN, text)
    assert not is_well_formed(RETRIEVAL_TOKEN, RETRIEVAL_TOKEN + text[4:])


@given(minted, st.data())
def test_a_slip_of_the_finger_is_noticed(text: str, data: st.DataObject) -> None:
    """A wrong, missing, doubled or swapped character, in the prefix or behind it."""
    place = data.draw(st.integers(0, len(text) - 1).filter(lambda place: place != 3))
    other = data.draw(characters)
    slips = {
        text[:place] + other + text[place + 1 :],
        text[:place] + text[place + 1 :],
        text[:place] + text[place] + text[place:],
        text[:place] + text[place : place + 2][::-1] + text[place + 2 :],
        text[:place] + text[place].swapcase() + text[place + 1 :],
        text + other,
    } - {text}
    for slip in slips:
        assert not is_well_formed(CLIENT_SECRET, slip)
        assert is_mistyped(CLIENT_SECRET, slip) or slip == text[:place] + other


@pytest.mark.parametrize("text", ["", "password", "0123456789abcdef" * 4, "pk_live_abc", "é" * 60])
def test_a_secret_of_another_make_is_not_a_mistyped_one(text: str) -> None:
    """It may be known by a bcrypt hash."""
    assert not is_well_formed(CLIENT_SECRET, text)
    assert not is_mistyped(CLIENT_SECRET, text)


def test_a_secret_does_not_show_itself() -> None:
    """Not when it is printed, formatted or part of something that is."""
    secret = Secret("pks_canary")
    assert "canary" not in f"{secret} {secret!r} {[secret]} {(secret,)!s}"
    assert secret.reveal() == "pks_canary"
