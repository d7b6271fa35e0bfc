"""The calls of the contract against the real service: tokens, selection, usage, leases."""

import uuid

import pytest

from client.conftest import APP, Acme
from pricekeeper.client import (
    Api,
    ForbiddenError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
)
from pricekeeper.errors import InvalidValueError

HOUR_MS = 3_600_000


async def test_the_five_minutes_of_an_app(api: Api) -> None:
    model = await api.select()
    lease = await api.acquire(model.label, {"rpm": 1})
    assert lease.limits["rpm"]["remaining"] == 2
    recorded = await api.record(model.label, 1_000, 100)

    assert (model.label, model.reason, model.mode) == ("premium", "NORMAL", "NORMAL")
    assert not recorded.duplicate
    assert recorded.cost_usd_micros == (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000


async def test_a_token_is_renewed_before_it_ends(api: Api, acme: Acme) -> None:
    """One session for the life of the app, through many tokens."""
    for _ in range(4):
        await api.limits()
        acme.clock.pass_ms(HOUR_MS - 30_000)

    assert api.tokens is not None
    assert (api.tokens.logins, api.tokens.renewals) == (1, 3)


async def test_an_ended_session_is_replaced(api: Api) -> None:
    before = (await api.sessions())["sessions"][0]["session_id"]
    await api.end_session(before)
    after = (await api.sessions())["sessions"]

    assert [one["current"] for one in after] == [True]
    assert after[0]["session_id"] != before


async def test_a_wrong_secret_is_refused(acme: Acme) -> None:
    client_id = f"org-{acme.org_id}"
    async with Api(acme.url, client_id, "pks_wrong") as stranger:
        with pytest.raises(ForbiddenError):
            await stranger.usage()


async def test_closing_ends_the_session(acme: Acme) -> None:
    """A process that restarts often does not push out its siblings."""
    async with acme.api() as staying:
        async with acme.api() as leaving:
            await leaving.limits()
            assert len((await staying.sessions())["sessions"]) == 2
        assert len((await staying.sessions())["sessions"]) == 1


async def test_a_selection_is_kept_as_long_as_it_says(api: Api, acme: Acme) -> None:
    first = await api.select()
    assert await api.select() is first
    assert await api.select(force_check=True) is not first
    kept = await api.select()
    acme.clock.pass_ms(kept.keep_secs * 1000)
    assert await api.select() is not kept


async def test_spending_everything_moves_on_and_then_stops(api: Api) -> None:
    await api.record("premium", 300_000, 0)
    model = await api.select(force_check=True)
    assert (model.label, model.reason) == ("standard", "QUOTA_EXCEEDED")
    await api.record("standard", 300_000, 0)

    with pytest.raises(QuotaSpentError) as caught:
        await api.select(force_check=True)
    assert caught.value.resets_at.endswith("T00:00:00Z")


async def test_the_same_record_counts_once(api: Api) -> None:
    request_id = str(uuid.uuid4())
    first = await api.record("premium", 10, 10, request_id=request_id)
    second = await api.record("premium", 10, 10, request_id=request_id)

    assert (first.duplicate, second.duplicate) == (False, True)
    with pytest.raises(RejectedError) as caught:
        await api.record("premium", 11, 10, request_id=request_id)
    assert caught.value.code == "REQUEST_ID_REUSED"


async def test_a_batch_is_judged_record_by_record(api: Api) -> None:
    good = {
        "request_id": str(uuid.uuid4()),
        "model_label": "premium",
        "input_tokens": 1,
        "output_tokens": 1,
    }
    answer = await api.record_many([good, {**good, "input_tokens": -1}])

    assert (answer["accepted"], answer["failed"]) == (1, 1)


async def test_a_denial_says_which_limit_and_until_when(api: Api) -> None:
    await api.acquire("premium", {"rpm": 3})
    with pytest.raises(RateLimitedError) as caught:
        await api.acquire("premium", {"rpm": 2})
    (violation,) = caught.value.violations
    assert (violation.limit, violation.requested) == ("rpm", 2)
    assert 0 < (caught.value.retry_after_ms or 0) <= 40_000

    with pytest.raises(RateLimitedError) as never:
        await api.acquire("premium", {"rpm": 4})
    assert never.value.retry_after_ms is None


async def test_a_lease_is_settled_to_what_was_used(api: Api) -> None:
    lease = await api.acquire("premium", {"rpm": 2})
    adjustment_id = str(uuid.uuid4())
    for _ in range(2):
        await api.adjust(lease.id, {"rpm": -1}, adjustment_id=adjustment_id)
    left = (await api.limits())["resources"]["premium"]["rpm"]["remaining"]
    assert left == 2


async def test_an_organisation_acts_for_its_app(acme: Acme) -> None:
    """With its own credentials, on the app's paths."""
    async with acme.api(f"org-{acme.org_id}", app_id=APP) as api:
        assert (await api.select()).label == "premium"
        assert (await api.usage())["app_id"] == APP
    with pytest.raises(InvalidValueError, match="another app"):
        acme.api(app_id="other")
