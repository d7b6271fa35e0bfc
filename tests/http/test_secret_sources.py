"""Instances without a common folder: keys and pepper from AWS, the environment, or files."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from http_fixtures import ENVIRONMENT, Api, Tenant
from pricekeeper.credentials.peppers import new_pepper
from pricekeeper.tokens import dump_keyring, new_keyring
from scraping import scrape, until
from secrets_manager import SecretsManagerStandIn, running_secrets_manager
from serving import Server, running_server

KEYS, PEPPER = "PRICEKEEPER_SIGNING_KEYS", "PRICEKEEPER_PEPPER"


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    """A new keyring and pepper."""
    keyring = dump_keyring(new_keyring(int(time.time()) - 10)).decode()
    return {"signing-keys": keyring, "pepper": new_pepper()}


@pytest.fixture(scope="module")
def aws(secrets: dict[str, str]) -> Iterator[SecretsManagerStandIn]:
    with running_secrets_manager(**secrets) as standin:
        yield standin


def private_parts(secrets: Mapping[str, str]) -> list[str]:
    (entry,) = json.loads(secrets["signing-keys"])["keys"]
    return [entry["refresh"], entry["signing"]["d"], secrets["pepper"].partition(":")[2]]


@pytest.mark.slow
def test_instances_without_a_common_folder_believe_each_other(
    tmp_path: Path, aws: SecretsManagerStandIn, secrets: dict[str, str]
) -> None:
    """A token of one is good at the other, and so is a secret that was claimed there.

    Nothing is made in a data folder, and nothing of it is in a log.
    """
    environment = {
        **ENVIRONMENT,
        KEYS: "aws:signing-keys",
        PEPPER: f"aws:{aws.arn('pepper')}",
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": aws.url,
    }
    store = f"sqlite:///{tmp_path}/store.db"
    with ExitStack() as running:
        servers: list[Server] = []
        for name in ("here", "there"):
            folder = tmp_path / name
            folder.mkdir()
            served = running_server(folder, environment=environment, store=store)
            servers.append(running.enter_context(served))
        here, there = (Api(server.url) for server in servers)
        tenant = Tenant(here).register()
        path = f"{tenant.app}/model-selection"
        assert there.call("GET", path, token=tenant.app_token).status == 200
        elsewhere = Tenant(there, tenant.org_id, secrets=tenant.secrets)
        token = elsewhere.login(tenant.client_id)["access_token"]
        assert here.call("GET", path, token=token).status == 200
        logs = "".join(server.output() for server in servers)
    assert not any(part in logs for part in private_parts(secrets))
    made = {path.name for name in ("here", "there") for path in (tmp_path / name).rglob("*")}
    assert not made & {"signing-keys.json", "pepper"}


def test_a_failure_later_keeps_what_is_known_and_says_so(
    tmp_path: Path, secrets: dict[str, str]
) -> None:
    keys, pepper = tmp_path / "keys", tmp_path / "pepper"
    keys.write_text(secrets["signing-keys"], "utf-8")
    pepper.write_text(secrets["pepper"], "utf-8")
    for path in (keys, pepper):
        path.chmod(0o600)
    environment = {**ENVIRONMENT, KEYS: f"file:{keys}", PEPPER: f"file:{pepper}"}
    with running_server(tmp_path, environment=environment) as server:
        api = Api(server.url)
        tenant = Tenant(api).register()
        keys.rename(tmp_path / "away")

        failed = 'pricekeeper_signing_keys_refreshes_total{outcome="failed"}'
        until(lambda: scrape(api)[failed] > 0, server.output)
        assert tenant.login()["access_token"]
        assert "keyring_unusable" in server.output()
        assert KEYS in server.output()
        document = json.loads(secrets["signing-keys"])
        fresh = json.loads(dump_keyring(new_keyring(int(time.time()) + 300)))
        document["keys"] += fresh["keys"]
        (tmp_path / "new").write_text(json.dumps(document), "utf-8")
        (tmp_path / "new").chmod(0o600)
        (tmp_path / "new").rename(keys)
        until(
            lambda: len(api.call("GET", "/.well-known/jwks.json").json["keys"]) == 2, server.output
        )
