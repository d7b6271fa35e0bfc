"""Request ids with their time in them, made by a test's own clock."""

import uuid
from random import Random

_RANDOM = Random()


def minted(epoch_ms: int, random: Random = _RANDOM) -> str:
    """A new id of version 7, made at that moment."""
    value = epoch_ms << 80 | 0x7 << 76 | random.getrandbits(12) << 64
    value |= 0b10 << 62 | random.getrandbits(62)
    return str(uuid.UUID(int=value))
