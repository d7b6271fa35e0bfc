"""Judges bodies in a process of its own: ``python -m pricekeeper.bedrock.apart FD``.

The gateway asks over the socket with that file number. A request is two lengths, a `Question` and a
body; a reply is a length and the bytes that `hand_over` makes. The process ends when the socket is
closed, so it also ends with the gateway.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final

import msgspec

from pricekeeper.bedrock.reading import Question, hand_over, read_and_judge

ASKED: Final = struct.Struct(">II")
ANSWERED: Final = struct.Struct(">I")
_decode: Final = msgspec.msgpack.Decoder(Question).decode


def main() -> None:
    """Answer requests until the socket is closed."""
    with socket.socket(fileno=int(sys.argv[1])) as asking, asking.makefile("rwb") as stream:
        while head := stream.read(ASKED.size):
            asked_bytes, body_bytes = ASKED.unpack(head)
            question = _decode(stream.read(asked_bytes))
            answer = hand_over(read_and_judge(question, stream.read(body_bytes)))
            stream.write(ANSWERED.pack(len(answer)))
            stream.write(answer)
            stream.flush()


if __name__ == "__main__":
    main()
