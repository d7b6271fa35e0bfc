"""Which requests are sent again, and the error of every kind of answer."""

from typing import Any

import pytest

from client.scripted import LOST, USAGE, HastyClock, Reply, ScriptedService
from free_port import free_port
from pricekeeper.client import (
    Admin,
    Api,
    ForbiddenError,
    MissingError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
    ReplyLostError,
    ServiceError,
    UnavailableError,
    UnreachableError,
)
from pricekeeper.client.transport import ATTEMPTS_MAX
from pricekeeper.errors import FieldError, InvalidValueError

ORG = "11111111-1111-4111-8111-111111111111"
TOKEN = Reply(body={"access_token": "at", "refresh_token": "pkf", "expires_in": 3600})
BUSY = Reply(503, {"code": "STORE_UNAVAILABLE", "detail": "later"}, {"Retry-After": "1"})
LIMITED = Reply(
    429,
    {
        "code": "RATE_LIMIT_EXCEEDED",
        "detail": "too fast",
        "violations": [
            {"limit": "requests", "requested": 1, "available": 0, "retry_after_ms": 900}
        ],
    },
    {"Retry-After": "1"},
)
RECORDED = Reply(
    202,
    USAGE,
)


def keeper_of(service: ScriptedService, clock: HastyClock | None = None) -> Api:
    return Api(
        service.url, f"org-{ORG}-app-chat", "secret", clock=clock or HastyClock(), timeout_secs=5
    )


@pytest.mark.parametrize("trouble", [LOST, BUSY, LIMITED], ids=["lost", "503", "429"])
async def test_usage_is_sent_again_under_the_same_id(trouble: Reply | str) -> None:
    async with (
        ScriptedService(TOKEN, trouble, RECORDED, Reply()) as service,
        keeper_of(service) as keeper,
    ):
        await keeper.record("premium", 1, 1)

    first, second = (body for line, _, body in service.seen if "/usage" in line)
    assert first == second


async def test_it_gives_up_after_a_few_attempts_and_says_why() -> None:
    async with ScriptedService(TOKEN, *[BUSY] * 10) as service:
        keeper = keeper_of(service)
        with pytest.raises(UnavailableError, match="later"):
            await keeper.record("premium", 1, 1)
        assert len(service.seen) == 1 + ATTEMPTS_MAX
        await keeper.close()


async def test_a_batch_that_meets_a_limit_is_sent_again_and_an_acquire_is_not() -> None:
    """A refused record is lost money; a refused acquire is the caller's to know."""
    answer = Reply(207, {"accepted": 1, "duplicates": 0, "failed": 0, "results": []})
    async with ScriptedService(TOKEN, LIMITED, answer, *[LIMITED] * 4, Reply()) as service:
        keeper = keeper_of(service)
        assert (await keeper.record_many([{"request_id": "r"}]))["accepted"] == 1
        with pytest.raises(RateLimitedError):
            await keeper.acquire("premium", {"rpm": 1})
        with pytest.raises(RateLimitedError):
            await keeper.record("premium", 1, 1)
        await keeper.close()

    sent = [line.rpartition("/apps/chat/")[2] for line in service.lines[1:-1]]
    assert sent == [*["usage/batch"] * 2, "limits/acquire", *["usage"] * ATTEMPTS_MAX]


@pytest.mark.parametrize("trouble", [BUSY, LIMITED], ids=["503", "429"])
async def test_it_waits_as_long_as_the_service_says(trouble: Reply) -> None:
    clock = HastyClock()
    async with (
        ScriptedService(TOKEN, trouble, RECORDED, Reply()) as service,
        keeper_of(service, clock) as keeper,
    ):
        await keeper.record("premium", 1, 1)

    assert [1_000 <= pause_ms < 1_100 for pause_ms in clock.pauses_ms] == [True]


async def test_a_write_that_could_be_done_twice_is_sent_once() -> None:
    """A second rotation would void the first retrieval token."""
    async with (
        ScriptedService(LOST, Reply()) as service,
        Admin(service.url, "key", clock=HastyClock()) as admin,
    ):
        with pytest.raises(ReplyLostError, match="may have been applied"):
            await admin.rotate(ORG, grace_period_hours=0)

    assert len(service.seen) == 1


async def test_nobody_there_is_told_apart_from_a_lost_reply() -> None:
    """If nothing was sent, nothing can have been applied."""
    clock = HastyClock()
    async with Admin(f"http://127.0.0.1:{free_port()}", "key", clock=clock) as admin:
        with pytest.raises(UnreachableError, match="can't be reached"):
            await admin.put_org(ORG, {})

    assert len(clock.pauses_ms) == ATTEMPTS_MAX - 1


async def test_a_403_is_final() -> None:
    """The token is valid but lacks permission."""
    denied = Reply(403, {"code": "FORBIDDEN", "detail": "not yours"})
    async with ScriptedService(TOKEN, denied) as service:
        keeper = keeper_of(service)
        with pytest.raises(ForbiddenError, match="not yours"):
            await keeper.limits()
        assert len(service.seen) == 2
        await keeper.close()


async def test_a_redirect_is_not_followed() -> None:
    """It would carry the credentials elsewhere."""
    moved = Reply(307, {}, {"Location": "http://127.0.0.1:9/elsewhere"})
    async with ScriptedService(moved) as service, Admin(service.url, "key") as admin:
        with pytest.raises(ServiceError) as caught:
            await admin.list_orgs()

    assert caught.value.status == 307


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, {"code": "INVALID_CONFIG", "detail": "bad"}, RejectedError, "INVALID_CONFIG"),
        (409, {"code": "CONFLICT", "detail": "no"}, RejectedError, "CONFLICT"),
        (401, {"code": "UNAUTHORIZED", "detail": "who"}, ForbiddenError, "UNAUTHORIZED"),
        (404, {"code": "NOT_FOUND", "detail": "none"}, MissingError, "NOT_FOUND"),
        (429, {"code": "RATE_LIMIT_EXCEEDED", "detail": "slow"}, RateLimitedError,
         "RATE_LIMIT_EXCEEDED"),
        (429, {"code": "QUOTA_EXCEEDED", "detail": "spent"}, QuotaSpentError, "QUOTA_EXCEEDED"),
        (500, {"code": "INTERNAL", "detail": "oops"}, ServiceError, "INTERNAL"),
        (502, b"<html>Bad Gateway</html>", UnavailableError, "HTTP_502"),
        (418, b"", RejectedError, "HTTP_418"),
    ],
)  # fmt: skip
async def test_every_answer_has_its_error(
    status: int, body: Any, kind: type[ServiceError], code: str
) -> None:
    async with (
        ScriptedService(*[Reply(status, body)] * ATTEMPTS_MAX) as service,
        Admin(service.url, "key", clock=HastyClock()) as admin,
    ):
        with pytest.raises(kind) as caught:
            await admin.get_org(ORG)

    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (status, code)


async def test_refused_fields_are_listed() -> None:
    errors = [{"field": "quotas.x", "message": "is no label"}]
    bad = Reply(400, {"code": "INVALID_CONFIG", "detail": "bad", "errors": errors})
    async with ScriptedService(bad) as service, Admin(service.url, "key") as admin:
        with pytest.raises(RejectedError) as caught:
            await admin.put_org(ORG, {})

    assert caught.value.errors == (FieldError("quotas.x", "is no label"),)


async def test_no_app_is_called_dot_dot() -> None:
    """That path means another one: the organisation would be deleted."""
    async with ScriptedService(Reply(204, b"")) as service, Admin(service.url, "key") as admin:
        with pytest.raises(InvalidValueError, match="app_id"):
            await admin.delete_app(ORG, "..")
        await admin.delete_app(ORG, "v..2")

    assert service.lines == [f"DELETE /api/v1/orgs/{ORG}/apps/v..2"]


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", "", "http://"])
def test_what_is_no_url_is_told_at_once(url: str) -> None:
    with pytest.raises(InvalidValueError, match="url"):
        Admin(url, "key")


async def test_every_page_of_a_list_is_read() -> None:
    keys = [
        {"key_id": n, "name": "x", "role": "ADMIN", "created_at": "", "created_by": ""}
        for n in "12"
    ]
    pages = [Reply(body={"keys": keys[:1], "next": "a b"}), Reply(body={"keys": keys[1:]})]
    async with ScriptedService(*pages) as service, Admin(service.url, "key") as admin:
        found = await admin.list_admin_keys()

    assert [one.key_id for one in found] == ["1", "2"]
    assert service.lines[1] == "GET /api/v1/admin-keys?after=a+b"
