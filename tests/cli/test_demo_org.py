"""``serve --demo`` from one start to the next: pasted commands still work."""

import asyncio
import io
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gateway.agents import agent_body, thinking
from http_fixtures import Api
from pricekeeper.bootstrap import open_services
from pricekeeper.cli.demo_org import (
    DEMO_CLIENT,
    DEMO_KEY,
    DEMO_METRICS_TOKEN,
    SECRET_FILE,
    prepare_demo,
)
from pricekeeper.errors import InvalidClientError
from pricekeeper.settings import CLIENT_SETTINGS, SETTINGS, read_settings
from serving import running_server

URL = "http://127.0.0.1:8080"


def start(
    folder: Path, key: str = DEMO_KEY, store: str = "store", metrics_token: str = DEMO_METRICS_TOKEN
) -> dict[str, str]:
    """What a start prints to be pasted."""
    settings = read_settings(
        {
            "PRICEKEEPER_STORE": f"sqlite:///{folder}/{store}.db",
            "PRICEKEEPER_DATA_DIR": str(folder / "data"),
            "PRICEKEEPER_PROVISIONING_KEY": key,
            "PRICEKEEPER_METRICS_TOKEN": metrics_token,
        }
    )
    printed = io.StringIO()

    async def main() -> None:
        async with open_services(settings) as services:
            await prepare_demo(services, URL, Console(file=printed, width=40))
            secret = exported(printed.getvalue())["PRICEKEEPER_CLIENT_SECRET"]
            await services.credentials.authenticate(DEMO_CLIENT.client_id, secret)

    asyncio.run(main())
    return exported(printed.getvalue())


def exported(text: str) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


def test_the_names_are_those_that_the_client_and_the_commands_read(tmp_path: Path) -> None:
    """`ORG` and `APP` are for the reader's own commands."""
    known = {one.name for one in (*SETTINGS, *CLIENT_SETTINGS)}
    names = set(start(tmp_path))
    assert names - known == {"ORG", "APP"}
    assert names >= {
        "PRICEKEEPER_URL",
        "PRICEKEEPER_PROVISIONING_KEY",
        "PRICEKEEPER_CLIENT_ID",
        "PRICEKEEPER_CLIENT_SECRET",
        "PRICEKEEPER_METRICS_TOKEN",
    }


def test_the_next_start_prints_the_same(tmp_path: Path) -> None:
    """Nothing is rotated, so pasted commands still work."""
    assert start(tmp_path) == start(tmp_path) == start(tmp_path)


def test_only_the_owner_can_read_the_kept_secret(tmp_path: Path) -> None:
    """And one that others could read is replaced."""
    first = start(tmp_path)
    path = tmp_path / "data" / SECRET_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    second = start(tmp_path)
    assert second["PRICEKEEPER_CLIENT_SECRET"] != first["PRICEKEEPER_CLIENT_SECRET"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kept", [b"", b"pks_nonsense\n", b"\xff" * 10_000])
def test_a_kept_secret_that_opens_nothing_is_replaced(tmp_path: Path, kept: bytes) -> None:
    """The file may be anything."""
    start(tmp_path)
    path = tmp_path / "data" / SECRET_FILE
    path.write_bytes(kept)
    again = start(tmp_path)
    assert path.read_text("ascii").strip() == again["PRICEKEEPER_CLIENT_SECRET"]


def test_another_store_has_another_secret(tmp_path: Path) -> None:
    """What opens one store is worth nothing in another."""
    first = start(tmp_path)
    assert start(tmp_path, store="other") != first


def test_no_other_secret_is_kept_or_printed(tmp_path: Path) -> None:
    """A chosen key is not printed; the file has only the demo app's secret."""
    key = "0123456789abcdef0123456789abcdef0123456789abcdef"
    told = start(tmp_path, key, metrics_token="a-token-of-ones-own")
    assert told.keys().isdisjoint({"PRICEKEEPER_PROVISIONING_KEY", "PRICEKEEPER_METRICS_TOKEN"})
    kept = (tmp_path / "data" / SECRET_FILE).read_text("ascii")
    assert kept == f"{told['PRICEKEEPER_CLIENT_SECRET']}\n"

    async def opens_another() -> None:
        environment: Mapping[str, str] = {
            "PRICEKEEPER_STORE": f"sqlite:///{tmp_path}/store.db",
            "PRICEKEEPER_DATA_DIR": str(tmp_path / "data"),
        }
        async with open_services(read_settings(environment)) as services:
            await services.credentials.authenticate(DEMO_CLIENT.org.client_id, kept.strip())

    with pytest.raises(InvalidClientError):
        asyncio.run(opens_another())


@pytest.mark.slow
@pytest.mark.parametrize("thinks", [{}, {"thinking": thinking(8_000)}], ids=["", "thinks"])
@pytest.mark.parametrize("prompt_bytes", [60_000, 100_000])
def test_the_first_call_of_a_coding_agent_fits_into_a_dollar(
    tmp_path: Path, prompt_bytes: int, thinks: dict[str, Any]
) -> None:
    """It states 32,000 tokens for the answer; only the demo's cap makes it fit."""
    body = agent_body(prompt_bytes=prompt_bytes, **thinks)
    budget = {"name": "daily", "window": "DAY", "limit_usd_micros": 1_000_000}
    headers = {"content-type": "application/merge-patch+json"}
    with running_server(tmp_path, "--demo", environment={}) as server:
        pasted = exported(server.output())
        api = Api(server.url)
        path = f"/api/v1/orgs/{pasted['ORG']}/apps/{pasted['APP']}"

        def call(cap: int | None) -> tuple[int, str]:
            settings = {"budgets": [budget], "max_output_tokens_cap": cap}
            changed = api.call("PATCH", path, settings, key=DEMO_KEY, headers=headers)
            assert changed.status == 200, changed.data
            pair = f"{pasted['PRICEKEEPER_CLIENT_ID']}:{pasted['PRICEKEEPER_CLIENT_SECRET']}"
            reply = api.call(
                "POST", "/bedrock/anthropic/v1/messages", body, headers={"x-api-key": pair}
            )
            return reply.status, reply.headers.get("x-pricekeeper-max-output-tokens", "")

        assert call(cap=32_000) == (400, "")
        assert call(cap=None) == (200, "8192")


@pytest.mark.slow
def test_the_real_service_keeps_it_too(tmp_path: Path) -> None:
    """Started, stopped and started again, as `make run` does."""
    found = []
    for _ in range(2):
        with running_server(tmp_path, "--demo", environment={}) as server:
            found.append(exported(server.output())["PRICEKEEPER_CLIENT_SECRET"])
            assert "[bold]" not in server.output()  # consoles read no markup
    assert found[0] == found[1]
    with running_server(
        tmp_path, environment={"PRICEKEEPER_PROVISIONING_KEY": "3f9c1e7a5b8d2460c7e1f3a9b5d80264"}
    ) as server:
        assert "export" not in server.output()


def test_a_misspelt_setting_is_told_when_the_service_starts(tmp_path: Path) -> None:
    """Before it says where it serves."""
    environment = {"PRICEKEEPER_AGGREGATOR_INTERVAL": "5"}
    with running_server(tmp_path, "--demo", environment=environment) as server:
        told = server.output()
    assert "do you mean PRICEKEEPER_AGGREGATOR_INTERVAL_SECS?" in told.partition("serving on")[0]
