"""What rests of a secret: recognisable with the pepper, useless without it."""

import base64
import hashlib
import hmac

import pytest

from credentials.conftest import NEW_PEPPER, OLD_PEPPER
from pricekeeper.credentials import Pepper, Peppers
from pricekeeper.errors import InvalidValueError

ONE = "org-1"
ZEROS = "A" * 43 + "="


def test_the_form_is_scheme_version_and_digest() -> None:
    digest = hmac.new(b"1" * 32, b"org-1\0secret", hashlib.sha256).digest()
    expected = f"hmac-sha256$v1${base64.b64encode(digest).decode()}"
    assert Peppers(OLD_PEPPER).hash(ONE, "secret") == expected


def test_a_hash_knows_its_secret_and_no_other() -> None:
    """Nor another client's, even if the secret were the same."""
    peppers = Peppers(OLD_PEPPER)
    stored = peppers.hash(ONE, "secret")
    assert peppers.matches(stored, ONE, "secret")
    assert not peppers.matches(stored, ONE, "Secret")
    assert not peppers.matches(stored, ONE, "")
    assert not peppers.matches(stored, "org-2", "secret")


def test_an_older_pepper_goes_on_verifying_and_is_outdated() -> None:
    """So it can be replaced without an interruption."""
    stored = Peppers(OLD_PEPPER).hash(ONE, "secret")
    rotated = Peppers(NEW_PEPPER, OLD_PEPPER)
    assert rotated.matches(stored, ONE, "secret")
    assert rotated.is_outdated(stored)
    assert not rotated.is_outdated(rotated.hash(ONE, "secret"))


def test_a_pepper_that_is_gone_verifies_nothing() -> None:
    """Under no other key, and we can tell that this is why."""
    stored = Peppers(OLD_PEPPER).hash(ONE, "secret")
    assert not Peppers(NEW_PEPPER).matches(stored, ONE, "secret")
    assert not Peppers(NEW_PEPPER).knows(stored)
    assert not Peppers(Pepper("v1", b"x" * 32)).matches(stored, ONE, "secret")


@pytest.mark.parametrize(
    "stored",
    [
        *(None, "", "secret", "$2b$12$x"),
        *("hmac-sha256$v1$", "hmac-sha256$v1$!!!!", "hmac-sha256$v1$AAAA"),
        *(f"hmac-sha1$v1${ZEROS}", f"hmac-sha256$v1${ZEROS}", f"hmac-sha256$v9${ZEROS}"),
    ],
)
def test_nothing_else_is_a_hash(stored: str | None) -> None:
    """Neither nothing nor rubbish, and not a digest of zeros."""
    assert not Peppers(OLD_PEPPER).matches(stored, ONE, "secret")


@pytest.mark.parametrize("stored", [None, "rubbish", Peppers(NEW_PEPPER).hash(ONE, "other")])
def test_the_same_work_is_done_whatever_is_stored(
    stored: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One HMAC and one comparison in constant time, also where there is nothing to find."""
    made, compared = list[bytes](), list[bool]()
    real_digest, real_compare = hmac.digest, hmac.compare_digest

    def digest(key: bytes, message: bytes, algorithm: str) -> bytes:
        made.append(message)
        return real_digest(key, message, algorithm)

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one) == len(other))
        return real_compare(one, other)

    peppers = Peppers(OLD_PEPPER, NEW_PEPPER)
    monkeypatch.setattr(hmac, "digest", digest)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    peppers.matches(stored, ONE, "secret")
    assert (made, compared) == ([b"org-1\0secret"], [True])


def test_a_pepper_is_long_named_and_silent() -> None:
    """A short key, a name that would break the format, one name twice: refused at start."""
    for version, key in (("v1", b"short"), ("", b"1" * 32), ("v$1", b"1" * 32)):
        with pytest.raises(InvalidValueError):
            Pepper(version, key)
    with pytest.raises(InvalidValueError):
        Peppers(OLD_PEPPER, Pepper("v1", b"x" * 32))
    assert "1111" not in repr(OLD_PEPPER)
