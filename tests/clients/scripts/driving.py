"""What every script of this folder does with its client: the steps of one scenario.

The steps come as JSON in the first argument, and one line of JSON goes out. A script brings two
functions: one calls the model and returns the text, one yields the pieces of a stream.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import aclosing

WRAPPED = os.environ["CLIENT_KIND"] == "wrapped"
"""Whether the script is to wrap its client; else it knows nothing of the price keeper."""
PIECES_READ = 2
"""How many pieces of a stream are read before it is abandoned."""


def drive(call, stream):
    """Take the steps of the scenario, one after the other."""

    def take(step):
        if step["do"] == "call":
            return len(call(step["model"], step["prompt"]))
        if step["do"] == "stream":
            return sum(map(len, stream(step["model"], step["prompt"])))
        return _abandon(stream(step["model"], step["prompt"]))

    done = []
    for step in _steps():
        if step["do"] == "pause":
            time.sleep(step["secs"])
            continue
        began = time.monotonic()
        try:
            done.append(_outcome(began, chars=take(step)))
        except Exception as error:
            done.append(_outcome(began, error=error))
    print(json.dumps({"steps": done}), flush=True)


async def drive_async(call, stream):
    """The same for functions to await, and asynchronous generators."""

    async def take(step):
        if step["do"] == "call":
            return len(await call(step["model"], step["prompt"]))
        chars = count = 0
        async with aclosing(stream(step["model"], step["prompt"])) as pieces:
            async for piece in pieces:
                chars += len(piece)
                count += 1
                if step["do"] == "abandon" and count >= PIECES_READ:
                    break
        return chars

    done = []
    for step in _steps():
        if step["do"] == "pause":
            await asyncio.sleep(step["secs"])
            continue
        began = time.monotonic()
        try:
            done.append(_outcome(began, chars=await take(step)))
        except Exception as error:
            done.append(_outcome(began, error=error))
    print(json.dumps({"steps": done}), flush=True)


def _steps():
    return json.loads(sys.argv[1])


def _abandon(pieces):
    chars = 0
    for count, piece in enumerate(pieces, 1):
        chars += len(piece)
        if count >= PIECES_READ:
            break
    return chars


def _outcome(began, *, chars=0, error=None):
    secs = round(time.monotonic() - began, 2)
    if error is None:
        return {"outcome": "ok", "chars": chars, "secs": secs, "errors": []}
    return {
        "outcome": "error",
        "chars": 0,
        "secs": secs,
        "errors": list(_names(error)),
        "message": str(error)[:300],
    }


def _names(error):
    """The classes of an exception, then of what it came from, with AWS's code or the status."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield type(error).__name__
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            yield response.get("Error", {}).get("Code", "")
        if isinstance(getattr(error, "status_code", None), int):
            yield f"HTTP {error.status_code}"
        error = error.__cause__ or error.__context__
