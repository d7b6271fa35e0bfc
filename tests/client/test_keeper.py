"""The client against the real service: tokens, selection, usage, leases, sessions."""

import uuid

import pytest

from client.conftest import APP, Acme
from pricekeeper.client import (
    Api,
    ForbiddenError,
    MissingError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
)
from pricekeeper.errors import InvalidValueError

HOUR_MS = 3_600_000


async def test_the_five_minutes_of_an_app(keeper: Api) -> None:
    """Select, acquire, record, adjust: as the documentation shows it."""
    model = await keeper.select()
    async with await keeper.acquire(model.label, {"rpm": 1}) as lease:
        assert lease.limits["rpm"]["remaining"] == 2
    recorded = await keeper.record(model.label, 1_000, 100)

    assert (model.label, model.reason, model.mode) == ("premium", "NORMAL", "NORMAL")
    assert not recorded.duplicate
    assert recorded.cost_usd_micros == (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000


async def test_a_token_is_renewed_before_it_ends(keeper: Api, acme: Acme) -> None:
    """One session for as long as the app lives, however often its token runs out."""
    for _ in range(4):
        await keeper.limits()
        acme.clock.pass_ms(HOUR_MS - 30_000)

    assert keeper.tokens is not None
    assert (keeper.tokens.logins, keeper.tokens.renewals) == (1, 3)


async def test_an_ended_session_is_replaced(keeper: Api) -> None:
    """The app does not notice; it has another session afterwards."""
    before = (await keeper.sessions())["sessions"][0]["session_id"]
    await keeper.end_session(before)
    after = (await keeper.sessions())["sessions"]

    assert [one["current"] for one in after] == [True]
    assert after[0]["session_id"] != before


async def test_a_wrong_secret_is_refused(acme: Acme) -> None:
    """There is nothing to renew."""
    client_id = f"org-{acme.org_id}"
    async with Api(acme.url, client_id, "pks_wrong") as stranger:
        with pytest.raises(ForbiddenError):
            await stranger.usage()


async def test_closing_ends_the_session(acme: Acme) -> None:
    """A process that is restarted often does not push out its siblings."""
    async with acme.keeper() as staying:
        async with acme.keeper() as leaving:
            await leaving.limits()
            assert len((await staying.sessions())["sessions"]) == 2
        assert len((await staying.sessions())["sessions"]) == 1


async def test_a_selection_is_kept_as_long_as_it_says(keeper: Api, acme: Acme) -> None:
    """The same answer for five minutes, then a new one; at once if it is forced."""
    first = await keeper.select()
    assert await keeper.select() is first
    assert await keeper.select(force_check=True) is not first
    kept = await keeper.select()
    acme.clock.pass_ms(kept.keep_secs * 1000)
    assert await keeper.select() is not kept


async def test_spending_everything_moves_on_and_then_stops(keeper: Api) -> None:
    """From premium to standard, then no model until midnight."""
    await keeper.record("premium", 300_000, 0)
    model = await keeper.select(force_check=True)
    assert (model.label, model.reason) == ("standard", "QUOTA_EXCEEDED")
    await keeper.record("standard", 300_000, 0)

    with pytest.raises(QuotaSpentError) as caught:
        await keeper.select(force_check=True)
    assert caught.value.resets_at.endswith("T00:00:00Z")


async def test_the_same_record_counts_once(keeper: Api) -> None:
    """And the second answer says so."""
    request_id = str(uuid.uuid4())
    first = await keeper.record("premium", 10, 10, request_id=request_id)
    second = await keeper.record("premium", 10, 10, request_id=request_id)

    assert (first.duplicate, second.duplicate) == (False, True)
    with pytest.raises(RejectedError) as caught:
        await keeper.record("premium", 11, 10, request_id=request_id)
    assert caught.value.code == "REQUEST_ID_REUSED"


async def test_a_batch_is_judged_record_by_record(keeper: Api) -> None:
    """One bad record does not spoil the rest."""
    good = {
        "request_id": str(uuid.uuid4()),
        "model_label": "premium",
        "input_tokens": 1,
        "output_tokens": 1,
    }
    answer = await keeper.record_many([good, {**good, "input_tokens": -1}])

    assert (answer["accepted"], answer["failed"]) == (1, 1)


async def test_a_denial_says_which_limit_and_until_when(keeper: Api) -> None:
    """Exactly what the limiter knows."""
    await keeper.acquire("premium", {"rpm": 3})
    with pytest.raises(RateLimitedError) as caught:
        await keeper.acquire("premium", {"rpm": 2})
    (violation,) = caught.value.violations
    assert (violation.limit, violation.requested) == ("rpm", 2)
    assert 0 < (caught.value.retry_after_ms or 0) <= 40_000

    with pytest.raises(RateLimitedError) as never:
        await keeper.acquire("premium", {"rpm": 4})
    assert never.value.retry_after_ms is None


async def test_a_lease_is_settled_to_what_was_used(keeper: Api) -> None:
    """An adjustment by its id applies once."""
    lease = await keeper.acquire("premium", {"rpm": 2})
    adjustment_id = str(uuid.uuid4())
    for _ in range(2):
        await lease.adjust({"rpm": -1}, adjustment_id=adjustment_id)
    left = (await keeper.limits())["resources"]["premium"]["rpm"]["remaining"]
    assert left == 2


async def test_an_organisation_acts_for_its_app(acme: Acme) -> None:
    """With its own credentials, on the app's paths; an app can't be another."""
    async with acme.keeper(f"org-{acme.org_id}", app_id=APP) as keeper:
        assert (await keeper.select()).label == "premium"
        assert (await keeper.usage())["app_id"] == APP
    with pytest.raises(InvalidValueError, match="another app"):
        acme.keeper(app_id="other")


async def test_the_admin_sees_what_there_is(acme: Acme) -> None:
    """Put, get, list, override, delete."""
    async with acme.admin() as admin:
        assert [one["org_id"] for one in await admin.list_orgs()] == [acme.org_id]
        assert [one["app_id"] for one in await admin.list_apps(acme.org_id)] == [APP]
        answer = await admin.set_override(acme.org_id, APP, model_label="standard")
        assert answer["model_label"] == "standard"
        await admin.clear_override(acme.org_id, APP)
        await admin.delete_app(acme.org_id, APP)
        with pytest.raises(MissingError):
            await admin.get_app(acme.org_id, APP)
        await admin.delete_org(acme.org_id)
        assert await admin.list_orgs() == []
