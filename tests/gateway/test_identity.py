"""Identification: bearers, expired credentials, counted guesses, and hidden secrets."""

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from gateway.attempts import bedrock_client, client_with
from gateway.models import write_deployment
from gateway.world import App, ShiftedClock, World, claude_body, converse_body
from http_fixtures import ENVIRONMENT, Reply
from pricekeeper.settings import API_LIMITS_PER_MINUTE
from pricekeeper.standin import Running, running
from pricekeeper.tokens import Identity
from scraping import until
from serving import Server, running_server
from slowness import slow

PATH = "/bedrock/model/premium/converse"
SECRET_PROMPT = "the-prompt-that-stays-secret"


def call(world: World, bearer: str) -> Reply:
    headers = {"authorization": f"Bearer {bearer}"}
    return world.api.call("POST", PATH, converse_body(), headers=headers)


def test_a_bearer_is_an_access_token_or_a_pair(world: World, app: App) -> None:
    """A token of a session, one outside the slots, or the id and the secret."""
    for bearer in (app.token, app.aws_credentials()["Token"], app.pair, app.pair):
        assert call(world, bearer).status == 200
    world.assert_equal(app)


def test_a_pair_is_hashed_once(world: World, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token needs no session slot."""
    authenticated = []
    original = Identity.authenticate

    async def count(*arguments: Any, **more: Any) -> Any:
        authenticated.append(arguments[1])
        return await original(*arguments, **more)

    monkeypatch.setattr(Identity, "authenticate", count)
    for _ in range(5):
        assert call(world, app.pair).status == 200
    assert authenticated == [app.client_id]
    sessions = world.api.call("GET", "/auth/sessions", token=app.token).json["sessions"]
    assert len(sessions) == 1


@pytest.mark.parametrize(
    "bearer",
    [
        lambda app: f"{app.client_id}:pks_wrong",
        lambda app: f"{app.client_id}:",
        lambda app: f":{app.secret}",
        lambda app: f"org-{uuid.uuid4()}-app-web:{app.secret}",
        lambda app: app.secret,
        lambda app: app.token[:-2],
        lambda _: "made-up",
        lambda _: "ü:ö",
        lambda _: "%ff:%00",
    ],
)
def test_a_wrong_bearer_is_refused(world: World, app: App, bearer: Callable[[App], str]) -> None:
    """Always the same 403, and nothing is sent on."""
    headers = {"authorization": f"Bearer {bearer(app)}".encode().decode("latin-1")}
    reply = world.api.call("POST", PATH, converse_body(), headers=headers)
    assert reply.status == 403
    assert reply.headers["x-amzn-errortype"] == "AccessDeniedException"
    assert re.match("invalid credentials: .* client_id:client_secret", reply.json["message"])
    assert world.ledger.attempts == {}
    world.assert_equal(app)


@pytest.mark.parametrize("form", ["pair", "token"])
def test_an_organisations_own_credentials_are_refused_with_the_reason(
    world: World, app: App, form: str
) -> None:
    pair = f"org-{app.org_id}:{app.org_secret}"
    bearer = pair
    if form == "token":
        body = {"grant_type": "client_credentials", "client_id": f"org-{app.org_id}",
                "client_secret": app.org_secret}  # fmt: skip
        bearer = world.api.call("POST", "/auth/token", body).json["access_token"]
    reply = call(world, bearer)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
    assert "organisation's credentials; use an app's" in reply.json["message"]
    assert world.ledger.attempts == {}


ENDS: dict[str, Callable[[World, App], Reply]] = {
    "revoked": lambda world, app: world.api.provision(
        "POST", f"{app.path}/credentials/revoke", {"reason": "leaked"}
    ),
    "deleted": lambda world, app: world.api.provision("DELETE", app.path),
    "org-deleted": lambda world, app: world.api.provision("DELETE", app.org),
    "frozen": lambda world, app: world.api.provision(
        "PUT", f"{app.path}/freeze", {"reason": "leaked"}
    ),
}


@pytest.mark.parametrize("end", [*ENDS, "rotated"])
def test_what_ends_an_app_ends_all_of_its_credentials_at_once(
    world: World, app: App, end: str
) -> None:
    """On the instance where it happens with the next call: signature, token, pair."""
    assert_ended_by(world, app, lambda: end_by(world, app, end))
    assert world.ledger.attempts == {"Converse": 3}


def end_by(world: World, app: App, end: str) -> None:
    if end != "rotated":
        assert ENDS[end](world, app).status in (200, 201, 204)
        return
    path = f"{app.path}/credentials/rotate"
    rotated = world.api.provision("POST", path, {"grace_period_hours": 0})
    token = {"token": rotated.json["secret_retrieval"]["token"]}
    assert world.api.call("POST", "/api/v1/credentials/claim", token).status == 200


def assert_ended_by(world: World, app: App, end: Callable[[], None]) -> None:
    """Three ways of calling work, and after the end none does."""
    keys = app.aws_credentials()

    def statuses() -> list[int]:
        signed = signed_by(world, keys)
        return [signed, call(world, app.token).status, call(world, app.pair).status]

    assert statuses() == [200] * 3
    end()
    assert statuses() == [403] * 3


def signed_by(world: World, keys: dict[str, str]) -> int:
    """The status of a call of botocore's with those credentials."""
    with client_with(world, keys, retries={"total_max_attempts": 1}) as client:
        try:
            client.converse(modelId="premium", **converse_body())
        except client.exceptions.ClientError as error:
            status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
            return status
        return 200


@pytest.fixture(scope="module")
def stored(
    store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Running]]:
    """A real process on each store, with a log, and limits on failures."""
    folder: Path = tmp_path_factory.mktemp("stored")
    with running() as standin:
        environment = {
            **ENVIRONMENT,
            "PRICEKEEPER_BEDROCK_UPSTREAM": standin.url,
            "PRICEKEEPER_CONFIG": str(write_deployment(folder)),
            "PRICEKEEPER_LOG_LEVEL": "debug",
        }
        with running_server(folder, environment=environment, store=store) as server:
            yield server, standin


def world_of(stored: tuple[Server, Running]) -> World:
    server, standin = stored
    standin.ledger.clear()
    return World(server.url, standin.ledger, ShiftedClock(), standin.url)


@pytest.mark.parametrize("end", ["revoked", *slow("rotated", "frozen", "deleted")])
def test_they_end_on_every_store(stored: tuple[Server, Running], end: str) -> None:
    world = world_of(stored)
    app = App(world.api).register()
    assert_ended_by(world, app, lambda: end_by(world, app, end))


def test_books_equal_the_bill_on_every_store(stored: tuple[Server, Running]) -> None:
    """Plain calls, streams, and the other dialects."""
    world = world_of(stored)
    app = App(world.api).register()
    body = converse_body(SECRET_PROMPT)
    for operation in ("converse", "converse-stream"):
        assert world.post(f"/model/premium/{operation}", body, app).status == 200
    assert world.post("/anthropic/v1/messages", claude_body(model="auto"), app).status == 200
    assert world.assert_equal(app) > 0


def test_no_secret_and_no_body_is_ever_logged(stored: tuple[Server, Running]) -> None:
    """Of calls that are served, refused, denied and broken."""
    server, _ = stored
    world = world_of(stored)
    app = App(world.api).register()
    body = converse_body(SECRET_PROMPT)
    for operation in ("converse", "converse-stream", "invoke", "unknown", "count-tokens"):
        world.post(f"/model/premium/{operation}", body, app)
    fates = ("hangs-up", "cut", "ThrottlingException", "gateway-504")
    for fate in fates:
        text = f'{SECRET_PROMPT} [[standin {{"fate": "{fate}"}}]]'
        world.post("/model/premium/converse", converse_body(text), app)
        with suppress(IncompleteRead):
            world.post("/model/premium/converse-stream", converse_body(text), app)
    world.post("/model/premium/converse", f'{{"{SECRET_PROMPT}":'.encode(), app)
    call(world, f"{app.client_id}:{app.secret}x")
    call(world, f"{app.token}x")
    keys = app.aws_credentials()
    with bedrock_client(world, app) as client:
        client.converse(modelId="premium", **body)
    until(lambda: server.output().count('"event":"gateway"') > 10, server.output)
    log = server.output()
    secrets = (SECRET_PROMPT, app.secret, app.token, keys["Token"], keys["SecretAccessKey"],
               app.pair, app.basic.removeprefix("Basic "))  # fmt: skip
    for secret in secrets:
        assert secret not in log
    line = next(one for one in log.splitlines() if '"outcome":"served"' in one)
    for member in ("authorization_id", "cost_usd_micros", "label", "route", "elapsed_us"):
        assert f'"{member}"' in line


def test_guesses_count_as_failures_of_their_address(make_world: Any) -> None:
    """Wrong secrets and forged signatures, as at a login; a right one is served all the same."""
    limits = {**dict(API_LIMITS_PER_MINUTE), "failures": 4}
    world = make_world(api_limits_per_minute=limits)
    app = App(world.api).register()

    def is_barred() -> bool:
        body = {"grant_type": "client_credentials", "client_id": app.client_id}
        reply = world.api.call("POST", "/auth/token", {**body, "client_secret": "pks_no"})
        return bool(reply.status == 429)

    for _ in range(20):  # no credentials, or ones that have ended, are no guess
        world.api.call("POST", PATH, converse_body())
    revoked = app.login()
    world.api.call("POST", "/auth/revoke", {"token": revoked}, token=revoked)
    for _ in range(20):
        assert call(world, revoked).status == 403
    assert not is_barred()
    for _ in range(6):
        assert call(world, f"{app.client_id}:pks_guess").status == 403
    assert is_barred()
    assert call(world, app.pair).status == 200
    assert call(world, app.token).status == 200
    world.assert_equal(app)


def test_a_barred_address_is_compared_in_turn(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a login: what a barred address sends is doubted."""
    doubts: list[bool] = []
    original = Identity.authenticate

    async def note(*arguments: Any, doubted: bool = False) -> Any:
        doubts.append(doubted)
        return await original(*arguments, doubted=doubted)

    monkeypatch.setattr(Identity, "authenticate", note)
    limits = {**dict(API_LIMITS_PER_MINUTE), "failures": 2}
    world = make_world(api_limits_per_minute=limits)
    app = App(world.api).register()
    doubts.clear()
    for number in range(6):
        call(world, f"{app.client_id}:pks_guess{number}")
    assert doubts[0] is False
    assert doubts[-1] is True
