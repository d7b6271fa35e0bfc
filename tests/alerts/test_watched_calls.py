"""Denied and unsettled calls, from the real authorizations to the alert."""

import pytest

from alerts.conftest import APP, Instance, Org, budget
from authorizations.conftest import HELD_USD_PICOS, a_capture, a_request
from pricekeeper.alerts import AlertKind
from pricekeeper.alerts.alert import parse_body
from pricekeeper.alerts.findings import ASKED_MIN, UNSETTLED_MIN
from pricekeeper.authorizations import Authorizations
from pricekeeper.errors import AuthorizationDeniedError
from pricekeeper.limiter import Limiter
from pricekeeper.values import AppId
from selection.conftest import SettableClock

HELD_USD_MICROS = HELD_USD_PICOS // 1_000_000


def open_authorizations(instance: Instance, clock: SettableClock) -> Authorizations:
    return Authorizations(
        instance.store,
        clock,
        metering=instance.metering,
        prices=instance.prices,
        selection=instance.selection,
        ledger=instance.ledger,
        tokens=Limiter(instance.store, clock=clock).taker,
        watch=instance.alerts,
    )


@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_calls_that_are_denied_are_told(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """Half of them; who only tries is not counted."""
    granted = ASKED_MIN // 2
    limit = granted * HELD_USD_MICROS
    await org.configure(app={"budgets": [budget(limit, name="app")]})
    authorizations = open_authorizations(instance, clock)
    policy = await instance.tenants.find_policy(org.id, APP)
    for _ in range(granted):
        await authorizations.authorize(policy, a_request())
    for number in range(2 * granted):
        with pytest.raises(AuthorizationDeniedError):
            await authorizations.authorize(policy, a_request(dry_run=number >= granted))
    await instance.alerts.checks.run_once()
    await authorizations.close()

    (told,) = [parse_body(one.body) for one in await org.history(kind=AlertKind.DENIALS)]
    assert (told.about["denied"], told.about["asked"]) == (granted, 2 * granted)


@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_apps_that_nobody_has_registered_are_counted_as_one(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """Their names are the caller's: a name for each call tells one alert, of the organisation."""
    await org.configure(quota_scope="ORG", budgets=[budget(1)])
    authorizations = open_authorizations(instance, clock)
    for number in range(ASKED_MIN):
        policy = await instance.tenants.find_policy(org.id, AppId(f"any-{number}"))
        with pytest.raises(AuthorizationDeniedError):
            await authorizations.authorize(policy, a_request())
    await instance.alerts.checks.run_once()
    await authorizations.close()

    (told,) = [parse_body(one.body) for one in await org.history(kind=AlertKind.DENIALS)]
    assert (told.about["denied"], told.app_id) == (ASKED_MIN, None)


@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_calls_that_nobody_settles_are_told(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """What captures cost, and what the others are charged at."""
    await org.configure()
    authorizations = open_authorizations(instance, clock)
    policy = await instance.tenants.find_policy(org.id, APP)
    for _ in range(UNSETTLED_MIN):
        await authorizations.authorize(policy, a_request())
    captured = await authorizations.authorize(policy, a_request())
    for _ in range(2):  # the second is a duplicate
        shown = captured.authorization.shown_id
        await authorizations.capture(policy, shown, a_capture())
    clock.advance_ms(3_600_000)
    await authorizations.expiry.sweep()
    await instance.alerts.checks.run_once()
    await authorizations.close()

    (told,) = [parse_body(one.body) for one in await org.history(kind=AlertKind.UNSETTLED)]
    assert told.about["unsettled_calls"] == UNSETTLED_MIN
    assert told.about["unsettled_usd_micros"] == UNSETTLED_MIN * HELD_USD_MICROS
