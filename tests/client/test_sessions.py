"""Many processes of one app: no session is pushed out, and a token that ends is replaced."""

import asyncio
from pathlib import Path

import pytest

from client.conftest import APP, Acme
from client.money import COST_USD_MICROS, Money, money_of
from client.processes import run_processes
from client.waiting import until
from pricekeeper.client import AsyncPriceKeeper, ForbiddenError

REASON = "its secret has leaked"


@pytest.mark.slow
async def test_eight_processes_with_five_sessions(tmp_path: Path) -> None:
    """Their tokens need no session, so each logs in once."""
    report = await run_processes(tmp_path, processes=8, secs=3)

    assert report.wrong == []
    assert min(report.made) > 0
    assert report.logins == [1] * 8
    assert report.spent_usd_micros == sum(report.made) * COST_USD_MICROS


async def test_a_token_that_was_ended_leads_to_one_quiet_login(
    acme: Acme, keeper: AsyncPriceKeeper
) -> None:
    await keeper.limits()
    async with acme.admin() as admin:
        await admin.end_sessions(acme.org_id, APP, reason=REASON)
    answers = await asyncio.gather(*(keeper.limits() for _ in range(10)))
    assert [set(one.resources) for one in answers] == [{"premium", "standard"}] * 10
    assert keeper.engine.api.tokens is not None
    assert keeper.engine.api.tokens.logins == 2


async def test_credentials_that_were_revoked_are_a_clear_error(acme: Acme) -> None:
    """Reports wait for the new secret."""
    await acme.put_budget()
    keeper = acme.keeper()
    async with keeper.call(1_000, 500) as call:
        async with acme.admin() as admin:
            rotated = await admin.rotate(acme.org_id, APP, grace_period_hours=24)
            new = await admin.claim(rotated["secret_retrieval"]["token"])
            await admin.revoke_credentials(acme.org_id, APP, reason=REASON, previous_only=True)
        call.used_tokens(1_000, 100)
    for _ in range(3):
        with pytest.raises(ForbiddenError):
            await keeper.authorize(1_000, 500)
    assert keeper.untold == 1
    assert not keeper.engine.is_cut_off
    await keeper.close()

    acme.secrets[acme.client_id] = new["client_secret"]
    async with acme.keeper() as present, acme.api() as reading:
        await until(lambda: present.untold == 0)
        await present.flush()
        assert await money_of(reading) == Money(COST_USD_MICROS, 0)


async def test_a_wrong_secret_costs_one_login_for_all(acme: Acme) -> None:
    """Not one for each call, and the breaker stays closed: the service answers."""
    async with acme.keeper(client_secret="pks_wrong") as keeper:
        outcomes = await asyncio.gather(
            *(keeper.authorize(1, 1) for _ in range(5)), return_exceptions=True
        )
        assert [type(one) for one in outcomes] == [ForbiddenError] * 5
        assert not keeper.engine.is_cut_off
        assert keeper.untold == 0
