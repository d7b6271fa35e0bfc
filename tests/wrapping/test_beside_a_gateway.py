"""A wrapped client whose calls go through our gateway under another name: counted once."""

import asyncio
import base64
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

import pricekeeper
from pricekeeper.cli.demo import demo_settings
from pricekeeper.client import Admin
from pricekeeper.clock import SystemClock
from pricekeeper.settings import BedrockLocation
from pricekeeper.standin import running
from pricekeeper.testing.serving import running_service

ORG: dict[str, Any] = {
    "org_name": "Acme",
    "timezone": "UTC",
    "quota_scope": "APP",
    "model_ordering": ["premium"],
    "quotas": {"premium": 10_000_000},
    "quota_enforcement": "STRICT",
}
MESSAGES = [{"role": "user", "content": [{"text": "hello"}]}]
COST_USD_MICROS = (2 * 4_400_000 + 64 * 22_000_000) // 1_000_000


async def register(url: str, key: str) -> tuple[str, str]:
    async with Admin(url, key) as admin:
        org_id = str(uuid.uuid4())
        await admin.put_org(org_id, ORG)
        app = await admin.put_app(org_id, "chat", {"app_name": "Chat"})
        claimed = await admin.claim(app["secret_retrieval"]["token"])
        return claimed["client_id"], claimed["client_secret"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_call_through_the_gateway_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, streams: bool
) -> None:
    """The gateway's answer says that it counted the call, so the wrapper voids its own hold.

    The address does not show that the endpoint is a gateway.
    """
    with running() as standin:
        upstream = BedrockLocation(standin.url, "us-east-1", signs=False)
        settings = replace(demo_settings(tmp_path), bedrock=upstream)
        with running_service(settings, SystemClock()) as url:
            credentials = asyncio.run(register(url, settings.provisioning_key or ""))
            basic = base64.b64encode(":".join(credentials).encode()).decode()
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/auth/aws-credentials")
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", f"Basic {basic}")
            elsewhere = url.replace("127.0.0.1", "localhost")
            client = boto3.Session().client(
                "bedrock-runtime", region_name="us-east-1", endpoint_url=f"{elsewhere}/bedrock"
            )
            with pricekeeper.PriceKeeper(url, *credentials, spool_dir=tmp_path / "s") as keeper:
                wrapped = pricekeeper.wrap(client, keeper)
                if streams:
                    reply = wrapped.converse_stream(modelId="premium", messages=MESSAGES)
                    assert sum("metadata" in event for event in reply["stream"]) == 1
                else:
                    wrapped.converse(modelId="premium", messages=MESSAGES)
                assert keeper.flush() == 0
                (quota,) = keeper.budgets()["budgets"]
            client.close()
        assert standin.ledger.billed_calls == 1
    assert (quota["spent_usd_micros"], quota["held_usd_micros"]) == (COST_USD_MICROS, 0)
