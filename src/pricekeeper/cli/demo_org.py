"""The demo organisation of ``serve --demo``, with its secret in the data folder."""

from __future__ import annotations

import base64
import os
import shlex
import stat
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pricekeeper.authority import DEPLOYMENT, Attribution
from pricekeeper.bootstrap import Services
from pricekeeper.credentials import Retrieval
from pricekeeper.credentials.secret import SECRET_BYTES_MAX
from pricekeeper.credentials.strength import PUBLIC_KEY, PUBLIC_METRICS_TOKEN
from pricekeeper.errors import InvalidClientError
from pricekeeper.settings import (
    CLIENT_ID,
    CLIENT_SECRET,
    METRICS_TOKEN,
    PROVISIONING_KEY,
    URL,
    Settings,
)
from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId

DEMO_KEY: Final = PUBLIC_KEY
DEMO_METRICS_TOKEN: Final = PUBLIC_METRICS_TOKEN
DEMO_ORG: Final = OrgId("11111111-1111-4111-8111-111111111111")
DEMO_APP: Final = AppId("assistant")
DEMO_CLIENT: Final = Client(DEMO_ORG, DEMO_APP)
DEMO: Final = Attribution("serve/demo", "local", "local", authority=DEPLOYMENT)
SECRET_FILE: Final = "demo-secret"  # noqa: S105  # its name
GRACE_HOURS: Final = 24

ORG_BODY: Final[dict[str, Any]] = {
    "org_name": "Demo Company",
    "timezone": "America/New_York",
    "quota_scope": "APP",
    "model_ordering": ["premium", "standard", "economy"],
    "quotas": {"premium": 2_000_000, "standard": 1_000_000, "economy": 500_000},
    "rate_limits": {
        "*": {
            "rpm": {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60_000},
            "tpm": {"capacity": 1_000_000, "refill_amount": 1_000_000, "refill_period_ms": 60_000},
        }
    },
    "quota_enforcement": "STRICT",
    # Coding agents state 32,000 tokens for each answer, which is 70 cents on premium.
    "max_output_tokens_cap": 8_192,
    "budgets": [{"name": "monthly", "window": "MONTH", "limit_usd_micros": 50_000_000}],
}

_FOUND_FIRST: Final = (
    "AWS_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
)
"""Where SDKs look before they ask the gateway."""
_PAIR: Final = '"$PRICEKEEPER_CLIENT_ID:$PRICEKEEPER_CLIENT_SECRET"'
_ONE_MORE_LINE: Final = (
    (
        "OpenAI's SDKs",
        f'OPENAI_BASE_URL="$PRICEKEEPER_URL/bedrock/openai/v1" OPENAI_API_KEY={_PAIR}',
    ),
    (
        "Anthropic's SDKs, for its own API",
        f'ANTHROPIC_BASE_URL="$PRICEKEEPER_URL/bedrock/anthropic" ANTHROPIC_API_KEY={_PAIR}',
    ),
    (
        "Claude Code",
        "CLAUDE_CODE_USE_BEDROCK=1 ANTHROPIC_MODEL=standard ANTHROPIC_DEFAULT_HAIKU_MODEL=economy",
    ),
    (
        "Vercel's AI SDK, in a separate terminal: boto3 sends no bearer token over http",
        f"AWS_BEARER_TOKEN_BEDROCK={_PAIR}",
    ),
)
"""Separate lines: a bearer token breaks boto3, others redirect programs without Bedrock."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


async def prepare_demo(services: Services, url: str, console: Console) -> None:
    """Create the organisation and app, and print the environment."""
    await services.credentials.provision(Client(DEMO_ORG), ORG_BODY, DEMO)
    app, body = Client(DEMO_ORG, DEMO_APP), {"app_name": "Assistant"}
    created = await services.credentials.provision(app, body, DEMO)
    secret = await _read_secret(services) or await _issue_secret(services, created.retrieval)
    heading = Text.assemble(("Demo Company", "bold"), " is ready. ")
    console.print(heading.append("Paste this into another terminal:\n"), soft_wrap=True)
    settings = services.settings
    # A key or token from the environment is a secret, and is not printed.
    key = [(PROVISIONING_KEY, DEMO_KEY)] if settings.provisioning_key == DEMO_KEY else []
    is_public = settings.metrics_token == DEMO_METRICS_TOKEN
    metrics_token = [(METRICS_TOKEN, DEMO_METRICS_TOKEN)] if is_public else []
    of_gateway = _gateway_variables(settings, url, secret)
    for name, value in (
        (URL, url),
        *key,
        ("ORG", DEMO_ORG),
        ("APP", DEMO_APP),
        (CLIENT_ID, DEMO_CLIENT.client_id),
        (CLIENT_SECRET, secret),
        *metrics_token,
        *of_gateway,
    ):
        console.print(Text(f"export {name}={shlex.quote(value)}"), soft_wrap=True)
    if of_gateway:
        console.print(Text(f"unset {' '.join(_FOUND_FIRST)}"), soft_wrap=True)
        console.print("\nSome clients need one more line. Paste only the line of your client.")
        for client, assignments in _ONE_MORE_LINE:
            console.print(Text(f"\n{client}:\nexport {assignments}"), soft_wrap=True)
    console.print()


def _gateway_variables(settings: Settings, url: str, secret: str) -> list[tuple[str, str]]:
    """Variables that send Bedrock clients to the gateway, as in docs/gateway.md."""
    if settings.bedrock is None or not settings.serves_gateway:
        return []
    pair = base64.b64encode(f"{DEMO_CLIENT.client_id}:{secret}".encode()).decode()
    return [
        ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", f"{url}/bedrock"),
        ("ANTHROPIC_BEDROCK_BASE_URL", f"{url}/bedrock"),
        ("AWS_BEDROCK_RUNTIME_ENDPOINT", f"{url}/bedrock"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/auth/aws-credentials"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", f"Basic {pair}"),
        ("AWS_REGION", settings.bedrock.region),
        ("AWS_DEFAULT_REGION", settings.bedrock.region),
        ("AWS_SHARED_CREDENTIALS_FILE", os.devnull),
        ("AWS_CONFIG_FILE", os.devnull),
    ]


async def _read_secret(services: Services) -> str | None:
    """The kept secret, if it works and only its owner can read it."""
    path = services.settings.data_dir / SECRET_FILE
    try:
        with path.open("rb") as file:
            is_private = not os.fstat(file.fileno()).st_mode & _OTHERS
            secret = file.read(SECRET_BYTES_MAX + 1).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not is_private:
        return None
    try:
        await services.credentials.authenticate(DEMO_CLIENT.client_id, secret)
    except InvalidClientError:
        return None
    return secret


async def _issue_secret(services: Services, retrieval: Retrieval | None) -> str:
    """Issue and keep a secret; an old one works for a day."""
    if retrieval is None:
        retrieval = (await services.credentials.rotate(DEMO_CLIENT, GRACE_HOURS, DEMO)).retrieval
    claimed = await services.credentials.claim(retrieval.token.reveal(), DEMO)
    secret = claimed.client_secret.reveal()
    _keep(services.settings.data_dir / SECRET_FILE, secret)
    return secret


def _keep(path: Path, secret: str) -> None:
    """Replace the file atomically, readable by its owner only."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(f"{secret}\n")
    fresh.replace(path)
