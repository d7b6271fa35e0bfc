"""A model call as one block: authorized on the way in, spooled on the way out, counted once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client.conftest import APP, APP_BODY, ORG_BODY, Acme
from client.money import BUDGET, COST_USD_MICROS, HELD_USD_MICROS, Money, money_of
from pricekeeper.client import Api, AsyncPriceKeeper, DeniedError, PriceKeeper
from pricekeeper.client.configuration import KeeperSettings
from pricekeeper.errors import InvalidValueError, SettingsError

REPLY: dict[str, Any] = {
    "usage": {"inputTokens": 1_000, "outputTokens": 100, "totalTokens": 1_100},
    "serviceTier": {"type": "default"},
}
MINUTE = {"refill_amount": 3, "refill_period_ms": 60_000}


@pytest.fixture(autouse=True)
async def tokens_a_minute(acme: Acme) -> None:
    """The app's buckets: three calls and 10,000 tokens, with slow refill."""
    limits = {"rpm": {"capacity": 3, **MINUTE}, "tpm": {"capacity": 10_000, **MINUTE}}
    async with acme.admin() as admin:
        await admin.put_org(acme.org_id, {**ORG_BODY, "budgets": [BUDGET]})
        await admin.put_app(acme.org_id, APP, {**APP_BODY, "rate_limits": {"*": limits}})


@pytest.fixture
async def blocking(acme: Acme) -> AsyncIterator[PriceKeeper]:
    with acme.blocking_keeper() as keeper:
        yield keeper


async def failing_after(keeper: AsyncPriceKeeper, input_tokens: int, output_tokens: int) -> None:
    """Say what it used, then fail for a reason of one's own."""
    async with keeper.call(1_000, 500) as call:
        call.used_tokens(input_tokens, output_tokens)
        raise KeyError("ours")


async def test_a_call_is_authorized_and_counted(keeper: AsyncPriceKeeper, api: Api) -> None:
    async with keeper.call(1_000, 500) as call:
        assert (call.label, call.authorization.reason) == ("premium", "NORMAL")
        assert "opus" in call.model_id
        assert call.max_output_tokens == 500
        assert await money_of(api) == Money(0, HELD_USD_MICROS)
        call.used(REPLY)
    assert await keeper.flush() == 0

    assert await money_of(api) == Money(COST_USD_MICROS, 0)
    assert not call.usage_unknown


def test_the_same_without_an_event_loop(blocking: PriceKeeper) -> None:
    with blocking.call(1_000, 500) as call:
        call.used(REPLY)
    assert blocking.flush() == 0

    shown = blocking.authorization(call.authorization.id)
    assert (shown["status"], shown["cost_usd_micros"]) == ("captured", COST_USD_MICROS)


async def test_every_kind_of_token_is_told_apart(keeper: AsyncPriceKeeper) -> None:
    usage = {
        "inputTokens": 100,
        "outputTokens": 10,
        "cacheReadInputTokens": 1_000,
        "cacheWriteInputTokens": 500,
        "cacheDetails": [{"ttl": "1h", "inputTokens": 200}, {"ttl": "5m", "inputTokens": 300}],
    }
    async with keeper.call(1_600, 100, cache_write="1h") as call:
        call.used({"usage": usage})
    async with keeper.call(1_600, 100, cache_write="1h") as plain:
        plain.used_tokens(
            100,
            10,
            cache_read_tokens=1_000,
            cache_write_5m_tokens=300,
            cache_write_1h_tokens=200,
        )
    assert await keeper.flush() == 0

    prices = (await keeper.select()).answer["pricing"]
    of = {"input": 100, "output": 10, "cache_read": 1_000, "cache_write_5m": 300}
    picos = sum(prices[f"{kind}_price_usd_micros_per_1m"] * n for kind, n in of.items())
    picos += prices["cache_write_1h_price_usd_micros_per_1m"] * 200
    for one in (call, plain):
        shown = await keeper.authorization(one.authorization.id)
        assert shown["cost_usd_micros"] == picos // 1_000_000


async def test_the_tier_that_was_served_is_what_is_billed(keeper: AsyncPriceKeeper) -> None:
    """A tier without a price costs the highest price."""
    async with keeper.call(1_000, 500) as call:
        call.used({**REPLY, "serviceTier": {"type": "flex"}})
    assert await keeper.flush() == 0

    (record,) = (await keeper.usage_records())["records"]
    assert (record["request_id"], record["service_tier"]) == (call.authorization.id, "flex")
    assert record["cost_usd_micros"] == COST_USD_MICROS


@pytest.mark.parametrize(
    ("used", "money"),
    [((1_000, 100), Money(COST_USD_MICROS, 0)), ((-1, 0), Money(0, HELD_USD_MICROS))],
    ids=["billed", "refused by the service"],
)
async def test_a_failure_after_the_call_is_the_callers_and_is_billed(
    keeper: AsyncPriceKeeper, api: Api, used: tuple[int, int], money: Money
) -> None:
    """A refused report is set aside, and the hold stays."""
    with pytest.raises(KeyError, match="ours"):
        await failing_after(keeper, *used)
    assert await keeper.flush() == 0

    assert await money_of(api) == money


async def test_a_call_beyond_a_limit_is_never_begun(keeper: AsyncPriceKeeper, api: Api) -> None:
    with pytest.raises(DeniedError) as denied:
        async with keeper.call(1_000, 500, consume={"rpm": 1, "tpm": 20_000}):
            raise AssertionError("was let in")

    assert [one.name for one in denied.value.denied_by] == ["tpm"]
    assert denied.value.by_speed
    assert await money_of(api) == Money(0, 0)


async def test_who_is_cancelled_on_the_way_out_is_billed_all_the_same(
    keeper: AsyncPriceKeeper, api: Api
) -> None:
    """The spool gets the report before the wait."""
    told = asyncio.Event()

    async def one_call() -> None:
        async with keeper.call(1_000, 500) as call:
            call.used(REPLY)
            told.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(one_call())
    await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await keeper.flush() == 0

    assert await money_of(api) == Money(COST_USD_MICROS, 0)


async def test_a_call_can_be_made_again(keeper: AsyncPriceKeeper, api: Api) -> None:
    call = keeper.call(1_000, 500)
    async with call:
        call.used(REPLY)
    with pytest.raises(InvalidValueError, match=r"call\.used"):
        async with call:
            pass
    assert await keeper.flush() == 0

    assert await money_of(api) == Money(COST_USD_MICROS, HELD_USD_MICROS)


async def test_a_block_of_the_wrong_kind_says_so(
    keeper: AsyncPriceKeeper, blocking: PriceKeeper
) -> None:
    with pytest.raises(InvalidValueError, match="async with"), keeper.call(1, 1):
        pass
    with pytest.raises(InvalidValueError, match="`with`"):
        async with blocking.call(1, 1):
            pass
    with pytest.raises(InvalidValueError, match="`with` block"):
        assert keeper.call(1, 1).model_id


@pytest.fixture
def environment(acme: Acme) -> dict[str, str]:
    return {
        "PRICEKEEPER_URL": acme.url,
        "PRICEKEEPER_CLIENT_ID": acme.client_id,
        "PRICEKEEPER_CLIENT_SECRET": acme.secrets[acme.client_id],
    }


async def test_the_environment_names_service_and_client(
    environment: dict[str, str], acme: Acme, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in environment:
        with pytest.raises(SettingsError, match=name):
            Api.from_environment({**environment, name: ""})
    async with Api.from_environment(environment) as api:
        assert (await api.select()).label == "premium"
    monkeypatch.setenv("PRICEKEEPER_SPOOL_DIR", str(acme.spool_dir))
    for name, value in environment.items():
        with pytest.raises(SettingsError, match=name):
            AsyncPriceKeeper()
        monkeypatch.setenv(name, value)
    async with AsyncPriceKeeper() as keeper:
        assert (await keeper.select()).label == "premium"


def test_models_for_an_outage_are_pairs_with_model_ids(environment: dict[str, str]) -> None:
    name = "PRICEKEEPER_UNAVAILABLE_MODELS"
    told = {**environment, name: "auto=us.anthropic.x-v1:0, premium = anthropic.y"}
    read = KeeperSettings.read({}, told).unavailable_models
    assert read == {"auto": "us.anthropic.x-v1:0", "premium": "anthropic.y"}
    assert KeeperSettings.read({"unavailable_models": {}}, told).unavailable_models == {}
    assert (
        len({KeeperSettings.read({}, told), KeeperSettings.read({}, told)}) == 1
    )  # keepers share it
    with pytest.raises(SettingsError, match=name):
        KeeperSettings.read({}, {**environment, name: "us.anthropic.x-v1:0"})
    for wrong in ("auto=premium", "auto=auto", "auto=", "=anthropic.y"):
        with pytest.raises(InvalidValueError, match="unavailable_models"):
            KeeperSettings.read({}, {**environment, name: wrong})
