"""A model call as one block: chosen, let in, recorded once and settled."""

import asyncio
from typing import Any

import pytest

from client.conftest import APP, APP_BODY, Acme
from pricekeeper.client import Api, ModelCall, RateLimitedError
from pricekeeper.errors import SettingsError

REPLY: dict[str, Any] = {
    "usage": {"inputTokens": 1_000, "outputTokens": 100, "totalTokens": 1_100},
    "serviceTier": {"type": "default"},
}
COST_USD_MICROS = (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000
MINUTE = {"refill_amount": 3, "refill_period_ms": 60_000}


@pytest.fixture(autouse=True)
async def tokens_a_minute(acme: Acme) -> None:
    """The app's buckets: three calls and 10,000 tokens, which hardly refill."""
    limits = {"rpm": {"capacity": 3, **MINUTE}, "tpm": {"capacity": 10_000, **MINUTE}}
    async with acme.admin() as admin:
        await admin.put_app(acme.org_id, APP, {**APP_BODY, "rate_limits": {"*": limits}})


async def left(keeper: Api) -> dict[str, int]:
    """What is in the buckets of the first label."""
    limits = (await keeper.limits())["resources"]["premium"]
    return {name: limit["remaining"] for name, limit in limits.items()}


async def was_recorded(keeper: Api, call: ModelCall) -> bool:
    """Whether the usage in `REPLY` was counted before, under the call's own id."""
    recorded = await keeper.record(
        call.label,
        1_000,
        100,
        request_id=call.request_id,
        bedrock_model_id=call.model_id,
        service_tier="default",
    )
    return recorded.duplicate


async def failing_after(call: ModelCall, input_tokens: int, output_tokens: int) -> None:
    """Say what it used, then fail for a reason of one's own."""
    async with call:
        call.used_tokens(input_tokens, output_tokens)
        raise KeyError("ours")


async def test_a_call_is_chosen_let_in_recorded_and_settled(keeper: Api) -> None:
    """The whole of it in one block."""
    async with keeper.call({"rpm": 1, "tpm": 4_000}) as call:
        assert (call.label, call.selection.reason) == ("premium", "NORMAL")
        assert "opus" in call.model_id
        assert await left(keeper) == {"rpm": 2, "tpm": 6_000}
        call.used(REPLY)

    assert call.recorded is not None
    assert call.recorded.cost_usd_micros == COST_USD_MICROS
    # 1,000 tokens in, and 100 out that count five times: the burn-down factor of the model.
    assert await left(keeper) == {"rpm": 2, "tpm": 10_000 - 1_500}
    assert await was_recorded(keeper, call)


async def test_every_kind_of_token_is_told_apart(keeper: Api) -> None:
    """Reads and writes of the cache, for five minutes and for an hour, at their own prices."""
    usage = {
        "inputTokens": 100,
        "outputTokens": 10,
        "cacheReadInputTokens": 1_000,
        "cacheWriteInputTokens": 500,
        "cacheDetails": [{"ttl": "1h", "inputTokens": 200}, {"ttl": "5m", "inputTokens": 300}],
    }
    async with keeper.call({"tpm": 1}) as call:
        call.used({"usage": usage})
    async with keeper.call() as plain:
        plain.used_tokens(
            100,
            10,
            cache_read_tokens=1_000,
            cache_write_5m_tokens=300,
            cache_write_1h_tokens=200,
        )

    assert call.recorded is not None
    assert plain.recorded is not None
    prices = call.selection.answer["pricing"]
    of = {"input": 100, "output": 10, "cache_read": 1_000, "cache_write_5m": 300}
    picos = sum(prices[f"{kind}_price_usd_micros_per_1m"] * n for kind, n in of.items())
    picos += prices["cache_write_1h_price_usd_micros_per_1m"] * 200
    assert call.recorded.cost_usd_micros == picos // 1_000_000
    assert plain.recorded.cost_usd_micros == call.recorded.cost_usd_micros
    assert (await left(keeper))["tpm"] == 10_000 - (100 + 10 * 5 + 500)


async def test_the_tier_that_was_served_is_what_is_billed(keeper: Api) -> None:
    """A tier without a price is counted at the highest there is, and the caller is told."""
    async with keeper.call() as call:
        call.used({**REPLY, "serviceTier": {"type": "flex"}})

    assert call.recorded is not None
    assert call.recorded.price_estimated
    assert call.recorded.cost_usd_micros == COST_USD_MICROS


async def test_a_failure_after_the_call_is_billed(keeper: Api) -> None:
    """The tokens are spent, whatever became of the answer."""
    call = keeper.call({"tpm": 4_000})
    with pytest.raises(KeyError, match="ours"):
        await failing_after(call, 1_000, 100)

    assert call.recorded is not None
    assert (await left(keeper))["tpm"] == 10_000 - 1_500


async def test_a_failure_to_record_does_not_hide_the_callers_own(keeper: Api) -> None:
    """It is noted on it."""
    with pytest.raises(KeyError) as caught:
        await failing_after(keeper.call(), -1, 0)

    assert "could not be told" in caught.value.__notes__[0]


async def test_a_call_beyond_a_limit_is_never_begun(keeper: Api) -> None:
    """The refusal names the limit; the block is not entered."""
    with pytest.raises(RateLimitedError) as denied:
        async with keeper.call({"rpm": 1, "tpm": 20_000}):
            raise AssertionError("was let in")

    assert [one.limit for one in denied.value.violations] == ["tpm"]
    assert await left(keeper) == {"rpm": 3, "tpm": 10_000}


async def test_who_is_cancelled_on_the_way_out_is_billed_all_the_same(
    keeper: Api,
) -> None:
    """A call that was made is recorded, though nobody waits for it any more."""
    call, told = keeper.call(), asyncio.Event()

    async def one_call() -> None:
        async with call:
            call.used(REPLY)
            told.set()

    task = asyncio.create_task(one_call())
    await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    assert await was_recorded(keeper, call)


async def test_the_environment_names_service_and_client(acme: Acme) -> None:
    """What is missing is named."""
    client_id = f"org-{acme.org_id}-app-{APP}"
    environment = {
        "PRICEKEEPER_URL": acme.url,
        "PRICEKEEPER_CLIENT_ID": client_id,
        "PRICEKEEPER_CLIENT_SECRET": acme.secrets[client_id],
    }
    for name in environment:
        with pytest.raises(SettingsError, match=name):
            Api.from_environment({**environment, name: ""})
    async with Api.from_environment(environment) as keeper:
        assert (await keeper.select()).label == "premium"
