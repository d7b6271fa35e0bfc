"""Tokens of ours that count no more: known as ours, and refused again at no cost."""

import pytest

from pricekeeper.errors import InvalidTokenError
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client
from pricekeeper.tokens.service import SPENT_AGE_MS_MAX
from tenants.conftest import new_org_id
from tokens.conftest import Instance, Member, MovableClock


def calls(meter: StoreMeter) -> int:
    return sum(meter.calls.values())


async def refused(at: Instance, refresh_token: str) -> InvalidTokenError:
    with pytest.raises(InvalidTokenError) as error:
        await at.identity.refresh(refresh_token)
    return error.value


async def test_a_refresh_token_that_was_refused_costs_no_more_reads(
    here: Instance, org: Member, clock: MovableClock, meter: StoreMeter
) -> None:
    """For a minute; then it is asked for once more, and the answer is the same."""
    token = (await org.login(here)).refresh_token
    await here.identity.end_all_sessions(org.id)
    assert (await refused(here, token)).genuine
    before = calls(meter)
    for _ in range(50):
        assert (await refused(here, token)).genuine
        with pytest.raises(InvalidTokenError):
            here.identity.refreshes_for(token)
    assert calls(meter) == before
    clock.pass_ms(SPENT_AGE_MS_MAX)
    assert here.identity.refreshes_for(token) == org.id
    assert (await refused(here, token)).genuine
    assert calls(meter) > before


async def test_what_another_client_presents_is_not_spent(here: Instance, org: Member) -> None:
    token = (await org.login(here)).refresh_token
    stranger = await here.register(Client(new_org_id()))
    other = await here.identity.authenticate(stranger.id, stranger.secret)
    with pytest.raises(InvalidTokenError) as error:
        await here.identity.refresh(token, other)
    assert error.value.genuine
    own = await here.identity.authenticate(org.id, org.secret)
    assert (await here.identity.refresh(token, own)).session_id


async def test_a_client_that_has_shown_its_secret_is_read_once(
    here: Instance, org: Member, meter: StoreMeter
) -> None:
    """A refresh with credentials costs no more than one without: who it is was just read."""
    token = (await org.login(here)).refresh_token
    before = calls(meter)
    token = (await here.identity.refresh(token)).refresh_token
    without = calls(meter) - before
    own = await here.identity.authenticate(org.id, org.secret)
    await here.identity.refresh(token, own)
    assert calls(meter) - before == 2 * without


async def test_who_never_was_a_token_of_ours_is_a_guess(here: Instance) -> None:
    """Refused without the store, and nothing is remembered of it."""
    for text in ("", "pkrt_", "pkrt_nonsense", "x" * 600):
        assert not (await refused(here, text)).genuine
