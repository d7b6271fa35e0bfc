"""A planted secret is nowhere to be found: not in the files, not in the logs."""

import base64
import itertools
from pathlib import Path

import bcrypt
import pytest

from attribution import BY
from credentials.conftest import NEW_PEPPER, OLD_PEPPER
from pricekeeper.credentials import Credentials, Peppers
from pricekeeper.errors import PriceKeeperError
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import Set, Store, Update, open_store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, Tenants, config_key
from pricekeeper.values import AppId
from stores import ShiftedClock
from tenants.conftest import LABELS, app_body, new_org_id, org_body

LEGACY = "CANARY correct horse battery staple"
ENTROPY = b"CANARY-entropy-of-31-bytes-here"


class Flows:
    """Everything that credentials go through, with entropy that we would recognise anywhere."""

    def __init__(self, store: Store) -> None:
        clock, numbers = ShiftedClock(), itertools.count()

        def entropy(length: int) -> bytes:
            return (bytes([next(numbers)]) + ENTROPY)[:length]

        old, new = Peppers(OLD_PEPPER), Peppers(NEW_PEPPER, OLD_PEPPER)
        self.store = store
        self.tenants = Tenants(store, clock, LABELS)
        self.old = Credentials(store, clock, self.tenants, old, entropy=entropy)
        self.new = Credentials(store, clock, self.tenants, new, entropy=entropy)
        self.secret_texts: list[str] = []
        self.error_texts: list[str] = []

    async def run(self, client: Client) -> None:
        first = await self.claimed(await self.registered(client))
        await self.new.authenticate(client.client_id, first)
        second = await self.claimed(await self.rotated(client))
        for secret in (first, second):
            await self.new.authenticate(client.client_id, secret)
        unclaimed = await self.rotated(client)
        for wrong in (unclaimed, first[:-1], second.swapcase(), LEGACY):
            await self.fail("authenticate", client.client_id, wrong)
            await self.fail("claim", wrong + "x", BY)
        await self.fail("rotate", client, 999, BY)
        stored = bcrypt.hashpw(LEGACY.encode(), bcrypt.gensalt(4)).decode()
        planted = (Set("client_secret_hash", stored),)
        await self.store.update(Update(CONFIG, config_key(client), planted))
        await self.new.authenticate(client.client_id, LEGACY)
        await self.new.revoke_now(client, BY, previous_only=True)
        await self.new.revoke_now(client, BY)
        await self.fail("claim", unclaimed, BY)

    async def registered(self, client: Client) -> str:
        body = org_body() if client.app_id is None else app_body()
        provisioned = await self.old.provision(client, body, BY)
        assert provisioned.retrieval is not None
        return self.noted(provisioned.retrieval.token.reveal())

    async def rotated(self, client: Client) -> str:
        return self.noted((await self.new.rotate(client, 24, BY)).retrieval.token.reveal())

    async def claimed(self, token: str) -> str:
        return self.noted((await self.old.claim(token, BY)).client_secret.reveal())

    async def fail(self, name: str, *arguments: object) -> None:
        with pytest.raises(PriceKeeperError) as error:
            await getattr(self.new, name)(*arguments)
        self.error_texts.append(f"{error.value} {error.value!r} {vars(error.value)}")

    def noted(self, text: str) -> str:
        self.secret_texts.append(text)
        return text


def read_all(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def forms(text: str) -> list[bytes]:
    """Forms of a leak: the secret itself, without its prefix, or thinly veiled."""
    raw = text.encode()
    veiled = [raw.hex().encode(), base64.b64encode(raw).rstrip(b"=")[:-1]]
    return [raw, raw[4:47], text.encode("utf-16-le"), *veiled]


async def test_no_secret_and_no_token_rests_or_is_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Through registration, claims, logins, rotations, upgrades, refusals and revocation."""
    caplog.set_level(0)
    store = await open_store(SqliteLocation(str(tmp_path / "store.db")), clock=ShiftedClock())
    await store.create_tables()
    flows, org_id = Flows(store), new_org_id()
    for client in (Client(org_id), Client(org_id, AppId("api"))):
        await flows.run(client)
    while_open = read_all(tmp_path)
    await store.close()
    printed = "".join(capfd.readouterr())
    told = f"{printed} {caplog.text} {flows.error_texts}".encode()

    assert len(set(flows.secret_texts)) == 2 * 5
    for place in (while_open, read_all(tmp_path), told):
        assert f"org-{org_id}".encode() in place, "this is the wrong place to look"
        for canary in (b"CANARY", ENTROPY.hex().encode(), OLD_PEPPER.key, NEW_PEPPER.key):
            assert canary not in place
        for text in flows.secret_texts:
            assert [form for form in forms(text) if form in place] == []
    assert b"hmac-sha256$v2$" in while_open
    for event in ("secret_claimed", "claim_refused", "secret_hash_upgraded", "secrets_revoked"):
        assert event in printed
