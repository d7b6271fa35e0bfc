"""The clients of the matrix, and an environment of its own for each.

An environment is made on first use, in a folder under ``.clients/``, and again when its list of
packages changes. The settings of pip and npm decide where packages come from.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

CHECKOUT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = CHECKOUT / ".clients"
SCRIPTS: Final = CHECKOUT / "tests" / "clients" / "scripts"
INSTALL_SECS_MAX: Final = 900

Kind = Literal["wrapped", "gateway"]
Family = Literal["anthropic", "openai"]
NODE: Final = "node"
VERCEL: Final = "vercel"
CLAUDE_CODE: Final = "claude-code"
PORTKEY: Final = "portkey"
LITELLM_PROXY: Final = "litellm-proxy"

PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "boto3": ("boto3==1.44.0",),
    "aiobotocore": ("aiobotocore==3.10.0",),
    "aioboto3": ("aioboto3==15.5.0",),
    "langchain-aws": ("langchain-aws==1.9.1",),
    "strands-agents": ("strands-agents==1.62.0",),
    "pydantic-ai": ("pydantic-ai-slim[bedrock]==2.66.0",),
    "llama-index": ("llama-index-llms-bedrock-converse==0.15.5",),
    "instructor": ("instructor==1.17.0", "boto3==1.44.0"),
    "anthropic": ("anthropic[bedrock]==2.8.0",),
    "litellm": ("litellm==1.106.0", "boto3==1.44.0"),
    "openai": ("openai==3.49.0",),
    "fastapi": ("fastapi==0.162.4", "aiobotocore==3.10.0"),
    NODE: ("@aws-sdk/client-bedrock-runtime@3.1162.0",),
    VERCEL: ("@ai-sdk/amazon-bedrock@4.0.186", "ai@6.0.326"),
    CLAUDE_CODE: ("@anthropic-ai/claude-code@2.1.197",),
    LITELLM_PROXY: ("litellm[proxy]==1.106.0", "boto3==1.44.0"),
    PORTKEY: ("@portkey-ai/gateway@1.15.2",),
}
"""What is installed in each environment; the first package is the one whose version is shown. The
last two are measured by ``bench/gateway.py``."""
_OF_NPM: Final = frozenset({NODE, VERCEL, CLAUDE_CODE, PORTKEY})


@dataclass(frozen=True, slots=True)
class Client:
    """One way in which programs call Bedrock."""

    name: str
    environment: str
    script: str
    kinds: tuple[Kind, ...]
    refuses: tuple[str, ...] = ()
    """The scenarios whose model name the client itself refuses, before any call."""
    scenarios: tuple[str, ...] | None = None
    """The scenarios that the client is for; ``None`` for all."""
    streams: bool = True
    family: Family = "anthropic"
    """Whose models it calls."""
    block: str = ""
    """The lines of docs/gateway.md that it needs besides those for all clients."""

    @property
    def version(self) -> str:
        """The version that is installed."""
        return re.split("[=@]+", PACKAGES[self.environment][0])[-1]


_BOTH: Final[tuple[Kind, ...]] = ("wrapped", "gateway")
_WRAPPED: Final[tuple[Kind, ...]] = ("wrapped",)
_GATEWAY: Final[tuple[Kind, ...]] = ("gateway",)

CLIENTS: Final = (
    Client("boto3", "boto3", "boto3_client.py", _BOTH),
    Client("botocore session", "boto3", "botocore_session.py", _WRAPPED),
    Client("aiobotocore", "aiobotocore", "aiobotocore_client.py", _BOTH),
    Client("aioboto3 session", "aioboto3", "aioboto3_session.py", _WRAPPED),
    Client("langchain-aws client", "langchain-aws", "langchain_client.py", _BOTH),
    Client("langchain-aws session", "langchain-aws", "langchain_session.py", _WRAPPED),
    Client("strands-agents", "strands-agents", "strands_agent.py", _BOTH),
    Client("pydantic-ai", "pydantic-ai", "pydantic_ai_agent.py", _BOTH),
    Client("llama-index", "llama-index", "llama_index_llm.py", _BOTH, refuses=("label", "auto")),
    Client("instructor", "instructor", "instructor_client.py", _WRAPPED, streams=False),
    Client(
        "instructor asking again",
        "instructor",
        "instructor_retries.py",
        _WRAPPED,
        scenarios=("plain", "denied"),
        streams=False,
    ),
    Client("anthropic", "anthropic", "anthropic_bedrock.py", _GATEWAY),
    Client("litellm", "litellm", "litellm_bedrock.py", _GATEWAY),
    Client("openai", "openai", "openai_client.py", _GATEWAY, family="openai", block="openai"),
    Client("anthropic, its own API", "anthropic", "anthropic_api.py", _GATEWAY, block="anthropic"),
    Client("Vercel's AI SDK", VERCEL, "vercel_ai.mjs", _GATEWAY, block="vercel"),
    # It first tries models that are not configured, so the scenarios that count attempts are not
    # for it.
    Client(
        "Claude Code",
        CLAUDE_CODE,
        "claude_code.mjs",
        _GATEWAY,
        scenarios=("plain", "label"),
        streams=False,
        block="claude-code",
    ),
    Client("JavaScript SDK", NODE, "javascript_sdk.mjs", _GATEWAY),
    Client("JavaScript SDK, HTTP/2", NODE, "javascript_http2.mjs", _GATEWAY),
)


def command_of(client: Client) -> list[str]:
    """How the client's script is run."""
    return [interpreter(client.environment), str(SCRIPTS / client.script)]


def interpreter(name: str) -> str:
    """What runs the scripts of an environment."""
    return "node" if name in _OF_NPM else str(FOLDER / name / "bin" / "python")


def prepare(name: str) -> None:
    """Have an environment with its packages; quick if it is there."""
    folder, stamp = FOLDER / name, FOLDER / name / ".installed"
    wanted = "\n".join((*PACKAGES[name], *_ours(name))) + "\n"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    print(f"clients: installing {PACKAGES[name][0]} in {folder.relative_to(CHECKOUT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name in _OF_NPM:
        _run(
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--prefix",
            folder,
            *PACKAGES[name],
        )
    else:
        _run(sys.executable, "-m", "venv", folder)
        pip = (interpreter(name), "-m", "pip", "-qq", "--no-input", "--disable-pip-version-check")
        _run(*pip, "install", *PACKAGES[name], *_ours(name))
        if name != LITELLM_PROXY:
            _run(*pip, "install", "--no-deps", "-e", CHECKOUT)
    stamp.write_text(wanted, "utf-8")


def _ours(name: str) -> list[str]:
    """What our client needs beside boto3, in the versions that we ship with."""
    if name in _OF_NPM or name == LITELLM_PROXY:
        return []
    locked = (CHECKOUT / "requirements" / "run.txt").read_text("utf-8")
    return re.findall(r"^(?:aiohttp|msgspec)==\S+", locked, re.MULTILINE)


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, timeout=INSTALL_SECS_MAX)
