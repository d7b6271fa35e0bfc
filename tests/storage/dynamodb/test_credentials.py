"""Credentials and endpoint, from where every AWS tool takes them, and off the event loop."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.credentials import Credentials as BotocoreCredentials
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from fault_proxy import Canned, Fault, FaultProxy
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import ITEM_ABSENT, Key, Put
from pricekeeper.storage.dynamodb import credentials as module
from pricekeeper.storage.dynamodb.credentials import CredentialSource, find_access
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG
from programs import run_program

EXPIRED = Canned({"__type": "com.amazon.coral.service#ExpiredTokenException", "message": "old"})


class Lender:
    """Lends credentials for a time, as STS does, and notes who asked."""

    def __init__(self) -> None:
        self.loans = 0
        self.threads: set[int] = set()
        self.broken = False

    def lend(self) -> dict[str, str]:
        if self.broken:
            raise CredentialRetrievalError(provider="test", error_msg="SECRET")
        self.loans += 1
        self.threads.add(threading.get_ident())
        until = datetime.now(UTC) + timedelta(hours=1)
        return {
            "access_key": f"AKID{self.loans}",
            "secret_key": "s",
            "token": "t",
            "expiry_time": until.isoformat(),
        }

    def refreshable(self) -> Any:
        return RefreshableCredentials.create_from_metadata(self.lend(), self.lend, "test")


async def test_the_chain_is_botocores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the environment; the endpoint follows the region, or what the set-up says."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "tok")
    access = await find_access(DynamoDbLocation("eu-central-1"), ManualClock())
    assert access.endpoint == "https://dynamodb.eu-central-1.amazonaws.com"
    assert access.host == "dynamodb.eu-central-1.amazonaws.com"
    found = access.credentials.current()
    assert found is not None
    assert (found.access_key, found.session_token) == ("AKIDENV", "tok")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:9")
    access = await find_access(DynamoDbLocation("eu-central-1"), ManualClock())
    assert access.endpoint == "http://127.0.0.1:9"
    access = await find_access(
        DynamoDbLocation("eu-central-1", endpoint="http://127.0.0.1:8"), ManualClock()
    )
    assert access.endpoint == "http://127.0.0.1:8"


async def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreMisconfiguredError, match="set AWS_ACCESS_KEY_ID"):
        await find_access(
            DynamoDbLocation("us-east-1", endpoint="http://127.0.0.1:8"), ManualClock()
        )


async def test_half_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreMisconfiguredError):
        await find_access(DynamoDbLocation("us-east-1"), ManualClock())


async def test_an_endpoint_with_a_path() -> None:
    """It would be signed wrongly, so it is refused."""
    location = DynamoDbLocation("us-east-1", endpoint="http://127.0.0.1:8/dynamo")
    with pytest.raises(StoreMisconfiguredError, match="no path"):
        await find_access(location, ManualClock())


async def test_lent_credentials_are_renewed_in_time() -> None:
    """Not before botocore wants it, once for all who wait, and never on the event loop."""
    lender, clock = Lender(), ManualClock()
    lent = lender.refreshable()
    source = CredentialSource(lent, clock)
    await source.renew()
    lender.threads.clear()
    clock.advance_ms(3_600_000)
    assert source.current() is not None
    assert lender.loans == 1
    lent._expiry_time = datetime.now(UTC) + timedelta(minutes=5)
    assert source.current() is not None  # looked a moment ago
    clock.advance_ms(10_000)
    assert source.current() is None
    renewed = await source.renew()
    assert renewed.access_key == "AKID2"
    assert source.current() is renewed
    assert await source.renew() is renewed
    assert lender.loans == 2
    assert threading.get_ident() not in lender.threads


async def test_lent_credentials_are_used_to_their_end() -> None:
    """If renewing fails early, the old ones still do, and it is not tried at every call."""
    lender, clock = Lender(), ManualClock()
    lent = lender.refreshable()
    source = CredentialSource(lent, clock)
    first = await source.renew()
    lender.broken = True
    lent._expiry_time = datetime.now(UTC) + timedelta(minutes=12)
    clock.advance_ms(10_000)
    assert source.current() is None
    assert await source.renew() == first
    assert source.current() == first
    lent._expiry_time = datetime.now(UTC) + timedelta(minutes=1)
    clock.advance_ms(10_000)
    with pytest.raises(StoreUnavailableError) as failure:
        await source.renew()
    assert "SECRET" not in str(failure.value)


async def test_refused_credentials_are_searched_anew(
    store: DynamoDbStore, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, key: Key
) -> None:
    """They may have been rotated; but only once in a call."""
    searches = 0

    def search(session: Any = None) -> BotocoreCredentials:
        nonlocal searches
        searches += 1
        return BotocoreCredentials(f"AKIDFRESH{searches}", "s")

    monkeypatch.setattr(module, "_find_credentials", search)
    proxy.next("GetItem", EXPIRED)
    assert await store.get(CONFIG, key) is None
    proxy.next("GetItem", EXPIRED, EXPIRED)
    with pytest.raises(StoreMisconfiguredError, match="ExpiredToken"):
        await store.get(CONFIG, key)
    assert searches == 2
    assert await store.get(CONFIG, key) is None


async def test_only_the_refused_credentials_are_discarded() -> None:
    """A late refusal of the old ones does not throw away what another caller has found."""
    source = CredentialSource(Lender().refreshable(), ManualClock())
    old = await source.renew()
    source.discard(old)
    source._found = Lender().refreshable()
    fresh = await source.renew()
    source.discard(old)
    assert source.current() is fresh


async def test_losing_credentials_after_losing_a_reply(
    store: DynamoDbStore, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, key: Key
) -> None:

    def search(session: Any = None) -> BotocoreCredentials:
        raise StoreMisconfiguredError("none left")

    monkeypatch.setattr(module, "_find_credentials", search)
    proxy.next("PutItem", Fault.CLOSE_AFTER, EXPIRED)
    with pytest.raises(OutcomeUnknownError):
        await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk}, ITEM_ABSENT))
    with pytest.raises(StoreMisconfiguredError, match="none left"):
        await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk}, ITEM_ABSENT))


def test_botocore_is_imported_when_a_store_is_opened() -> None:
    """And not because the adapter is."""
    program = (
        "import sys, pricekeeper.storage.dynamodb.store as s;"
        "sys.exit(any(name.startswith('botocore') for name in sys.modules))"
    )
    assert run_program(program).returncode == 0
