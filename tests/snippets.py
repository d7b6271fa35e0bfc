"""What a document shows, as programs: so that it runs exactly as shown.

A block is ```` ```python ````, and may name in its first line what it needs beside boto3:
```` ```python langchain-aws ````. Such a block is run where that is installed: in an environment of
``.clients/``, or here. A block that does not import the package continues the first block of its
document. A few blocks only define something; `DRIVERS` has what calls it.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CLIENT_DOCUMENT: Final = ROOT / "docs" / "client.md"
GATEWAY_DOCUMENT: Final = ROOT / "docs" / "gateway.md"
SECS_MAX: Final = 120
PYTEST: Final = "pytest"
"""The word of a block that is a file of tests."""
_BLOCK: Final = re.compile(r"^```python *([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

_DRIVE_LAMBDA: Final = """
assert handler({"question": "Why is the sky blue?"}, None)
assert not keeper.untold
"""
_DRIVE_FASTAPI: Final = """
import asyncio

async def drive():
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/ask", "headers": [], "state": {}}
    scope |= {"query_string": b"question=Why", "scheme": "http", "server": ("testing", 80)}
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent

asyncio.run(drive())
"""
DRIVERS: Final[Mapping[str, str]] = {"lambda": _DRIVE_LAMBDA, "fastapi": _DRIVE_FASTAPI}


@dataclass(frozen=True)
class Snippet:
    """One block of a document, and the program that it is."""

    line: int
    needs: str
    """What the block names in its first line; empty if it is run with boto3 alone."""
    program: str

    @property
    def name(self) -> str:
        """How a test names it."""
        return f"line-{self.line}" + f"-{self.needs}" * bool(self.needs)


def snippets(document: Path = CLIENT_DOCUMENT) -> list[Snippet]:
    """Every block of a document, in its order."""
    text = document.read_text("utf-8")
    found: list[Snippet] = []
    first = ""
    for block in _BLOCK.finditer(text):
        needs, code = block[1].strip(), block[2]
        first = first or code
        goes_on = not re.search(r"^\s*(import|from) .*\bpricekeeper\b", code, re.MULTILINE)
        program = (first if goes_on else "") + code + DRIVERS.get(needs, "")
        found.append(Snippet(text[: block.start()].count("\n") + 1, needs, program))
    return found


def run_snippet(
    python: str | Path, snippet: Snippet, environment: Mapping[str, str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a block as a program of its own; ``environment`` has the service and Bedrock in it."""
    file = folder / f"test_{snippet.line}.py"
    file.write_text(snippet.program, "utf-8")
    (folder / "pytest.ini").touch()  # else settings of a folder above would be the snippet's
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if snippet.needs == PYTEST else []
    return subprocess.run(  # noqa: S603 - what our own document says
        [str(python), *words, str(file)],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those of ours are not the reader's
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=SECS_MAX,
        check=False,
    )


def shell_blocks(document: Path, name: str = "") -> list[str]:
    """The blocks of a document that are ```` ```bash ````, or ```` ```bash name ````."""
    opening = f"```bash {name}".rstrip()
    pattern = re.compile(rf"^{re.escape(opening)}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return pattern.findall(document.read_text("utf-8"))


def environment_after(pasted: Iterable[str], before: Mapping[str, str]) -> dict[str, str]:
    """What a shell's environment is after these lines were pasted into it."""
    done = subprocess.run(  # noqa: S603 - what our own documents and the demo say
        ["bash", "-euc", "\n".join((*pasted, "env -0"))],  # noqa: S607
        env=before,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.rstrip("\0").split("\0"))


def gateway_environment(
    url: str, client_id: str, secret: str, block: str, before: Mapping[str, str]
) -> dict[str, str]:
    """The environment that the gateway's document shows, for one app of one service.

    ``block`` names the lines for one client that the document has beside those for all; empty for
    none.
    """
    own = {
        "PRICEKEEPER_URL": url,
        "PRICEKEEPER_CLIENT_ID": client_id,
        "PRICEKEEPER_CLIENT_SECRET": secret,
    }
    lines = shell_blocks(GATEWAY_DOCUMENT)
    if block:
        lines += shell_blocks(GATEWAY_DOCUMENT, block)
    return environment_after(lines, {**before, **own})
