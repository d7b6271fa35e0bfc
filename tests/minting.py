"""Request ids, made by a test's own clock."""

import uuid
from random import Random

_RANDOM = Random()


def minted(epoch_ms: int, random: Random = _RANDOM) -> str:
    """A new id of version 7, made at that moment."""
    value = epoch_ms << 80 | 0x7 << 76 | random.getrandbits(12) << 64
    value |= 0b10 << 62 | random.getrandbits(62)
    return str(uuid.UUID(int=value))


def either(epoch_ms: int, random: Random) -> str:
    """A new id, with its time in it or without."""
    if random.random() < 0.5:
        return minted(epoch_ms, random)
    return str(uuid.UUID(int=random.getrandbits(128), version=4))
