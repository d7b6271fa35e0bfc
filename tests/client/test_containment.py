"""The client on both sides of a containment: what an administrator does, and what an app meets."""

import pytest

from client.conftest import APP, Acme
from pricekeeper.client import (
    Api,
    ClientFrozenError,
    DeniedError,
    ForbiddenError,
    MissingError,
)
from pricekeeper.wire.operations import OPERATIONS

REASON = "its secret has leaked"


async def test_a_frozen_app_is_told_and_does_not_try_again(acme: Acme, api: Api) -> None:
    lease = await api.acquire("premium", {"rpm": 1})
    async with acme.admin() as admin:
        await admin.freeze(acme.org_id, reason=REASON)
        with pytest.raises(ClientFrozenError) as frozen:
            await api.select()
        error = frozen.value
        assert (error.reason, error.scope, error.status) == (REASON, "ORG", 403)
        assert error.frozen_at.endswith("Z")
        assert error.retry_after_secs is None
        assert isinstance(error, ForbiddenError)
        with pytest.raises(ClientFrozenError):
            await api.acquire("premium", {"rpm": 1})
        with pytest.raises(DeniedError) as denied:
            await api.authorize(1, 1)
        assert [one.kind for one in denied.value.denied_by] == ["FROZEN"]
        await api.record("premium", 10, 10)
        await api.adjust(lease.id, {"rpm": 1})
        await api.release(lease.id)
        await admin.unfreeze(acme.org_id, reason="a false alarm")
    assert (await api.select()).label == "premium"
    assert api.tokens is not None
    assert api.tokens.logins == 1


async def test_sessions_are_seen_and_ended_by_an_administrator(acme: Acme, api: Api) -> None:
    await api.limits()
    async with acme.admin() as admin:
        (session,) = (await admin.list_sessions(acme.org_id, APP))["sessions"]
        ending = {"session_id": session["session_id"], "reason": REASON}
        await admin.end_session(acme.org_id, APP, **ending)
        with pytest.raises(MissingError):
            await admin.end_session(acme.org_id, APP, **ending)
        await api.limits()
        await admin.end_sessions(acme.org_id, APP, reason=REASON)
        assert (await admin.list_sessions(acme.org_id, APP))["sessions"] == []
    await api.limits()
    assert api.tokens is not None
    assert api.tokens.logins == 3


@pytest.mark.parametrize("previous_only", [False, True])
async def test_revoked_credentials_open_nothing(
    acme: Acme, api: Api, *, previous_only: bool
) -> None:
    await api.limits()
    async with acme.admin() as admin:
        rotated = await admin.rotate(acme.org_id, APP, grace_period_hours=24)
        new = await admin.claim(rotated["secret_retrieval"]["token"])
        await api.limits()
        await admin.revoke_credentials(acme.org_id, APP, reason=REASON, previous_only=previous_only)
    with pytest.raises(ForbiddenError):
        await api.limits()
    acme.secrets[new["client_id"]] = new["client_secret"]
    async with acme.api() as present:
        if previous_only:
            await present.limits()
        else:
            with pytest.raises(ForbiddenError):
                await present.limits()


async def test_limits_are_reset(acme: Acme, api: Api) -> None:
    await api.acquire("premium", {"rpm": 3})
    async with acme.admin() as admin:
        assert (await admin.reset_limits(acme.org_id, APP, reason=REASON))["labels"] == ["premium"]
    await api.acquire("premium", {"rpm": 3})


def test_of_all_changes_those_that_are_harmless_are_sent_again() -> None:
    """An administrator decides about repeating the others."""
    changes = [one for one in OPERATIONS if one.tag == "containment" and one.method != "GET"]
    harmless = {one.name for one in changes if one.is_repeatable}
    assert harmless == {"freezeOrg", "freezeApp", "voidUsage", "voidOrgAuthorization"}
