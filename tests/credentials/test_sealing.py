"""Sealed secrets can be opened only by their owner, with the pepper."""

import pytest

from pricekeeper.credentials import Pepper, Peppers, Sealer

OLD, NEW = Pepper("v1", b"o" * 32), Pepper("v2", b"n" * 32)
TEXT = "https://hooks.example.com/a-secret"


def test_what_is_sealed_is_read_again_and_not_by_looking() -> None:
    """The same text twice is sealed differently, and neither shows it."""
    sealer = Sealer(Peppers(OLD))
    first, second = sealer.seal("org#ops", TEXT), sealer.seal("org#ops", TEXT)

    assert first != second
    assert "hooks" not in first
    assert sealer.unseal("org#ops", first) == sealer.unseal("org#ops", second) == TEXT


def test_another_owner_opens_nothing() -> None:
    """What is copied to another item is worthless there."""
    sealer = Sealer(Peppers(OLD))
    assert sealer.unseal("org#other", sealer.seal("org#ops", TEXT)) is None


def test_an_older_pepper_still_opens_and_another_one_does_not() -> None:
    """A pepper is replaced by adding a newer one."""
    sealed = Sealer(Peppers(OLD)).seal("org#ops", TEXT)

    assert Sealer(Peppers(NEW, OLD)).unseal("org#ops", sealed) == TEXT
    assert Sealer(Peppers(NEW)).unseal("org#ops", sealed) is None
    assert (
        Sealer(Peppers(OLD)).unseal("org#ops", Sealer(Peppers(NEW, OLD)).seal("org#ops", "x"))
        is None
    )


@pytest.mark.parametrize("damage", ["", "a.b.c.d.e", "cut", "flipped"])
def test_what_is_damaged_is_not_opened(damage: str) -> None:
    sealer = Sealer(Peppers(OLD))
    sealed = sealer.seal("org#ops", TEXT)
    if damage == "cut":
        damage = sealed[:-8]
    if damage == "flipped":
        head, _, tail = sealed.rpartition(".")
        damage = f"{head}.{'A' if tail[0] != 'A' else 'B'}{tail[1:]}"

    assert sealer.unseal("org#ops", damage) is None
