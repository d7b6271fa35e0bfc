"""OpenAI's and Anthropic's own packages through the gateway, by a base URL and a key alone.

``make test-clients`` has them, and others, in environments of their own.
"""

import importlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gateway.attempts import signing_time
from gateway.conftest import ScriptedWorld
from gateway.wire import Received, Upstream, whole
from gateway.world import App, Books, World, directive
from scraping import until

if TYPE_CHECKING:
    import anthropic
    import openai

SHORT = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 600}}}
Ask = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """Import the SDKs late: with them, each worker takes 3 s and 100 MB more to collect tests."""
    globals().update({name: importlib.import_module(name) for name in ("anthropic", "openai")})


def ask_openai(client: Any, text: str, **more: Any) -> Any:
    return client.chat.completions.create(
        model="gpt", messages=[{"role": "user", "content": text}], **more
    )


def ask_anthropic(client: Any, text: str, **more: Any) -> Any:
    return client.messages.create(
        model="premium", max_tokens=200, messages=[{"role": "user", "content": text}], **more
    )


def by_openai(world: World, app: App) -> Any:
    return openai.OpenAI(base_url=f"{world.url}/bedrock/openai/v1", api_key=app.pair)


def by_anthropic(world: World, app: App) -> Any:
    return anthropic.Anthropic(base_url=f"{world.url}/bedrock/anthropic", api_key=app.pair)


def by_signature(world: World, app: App) -> Any:
    keys = app.aws_credentials()
    return anthropic.AnthropicBedrock(
        base_url=f"{world.url}/bedrock",
        aws_region="us-east-1",
        aws_access_key=keys["AccessKeyId"],
        aws_secret_key=keys["SecretAccessKey"],
        aws_session_token=keys["Token"],
    )


SDKS = {
    "openai": (by_openai, ask_openai),
    "anthropic": (by_anthropic, ask_anthropic),
    "anthropic-bedrock": (by_signature, ask_anthropic),
}


@pytest.fixture(params=list(SDKS))
def sdk(request: pytest.FixtureRequest) -> tuple[Callable[[World, App], Any], Ask]:
    return SDKS[request.param]


def attempts_of(client: Any) -> list[int]:
    """The statuses that the client gets, one for each attempt."""
    statuses: list[int] = []
    client._client.event_hooks["response"].append(
        lambda response: statuses.append(response.status_code)
    )
    return statuses


def test_plain_and_streams_are_counted(world: World, app: App, sdk: Any) -> None:
    make, ask = sdk
    with make(world, app) as client:
        assert ask(client, directive(output_tokens=20)).usage is not None
        events = list(ask(client, directive(output_tokens=20, events=6), stream=True))
        assert len(events) >= 6
    assert world.assert_equal(app) > 0
    assert world.ledger.billed_calls == 2


def test_a_stream_that_is_left_is_counted(world: World, app: App, sdk: Any) -> None:
    make, ask = sdk
    with make(world, app) as client:
        text = directive(output_tokens=60, events=30, between_ms=10)
        stream = ask(client, text, stream=True)
        next(iter(stream))
        stream.close()
    assert world.assert_equal(app) > 0


def test_a_spent_budget_is_final(world: World, sdk: Any) -> None:
    """One attempt, and the message is in the exception."""
    make, ask = sdk
    app = App(world.api).register(limit_usd_micros=5)
    with make(world, app) as client:
        statuses = attempts_of(client)
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="budget all"):
            ask(client, "hello")
        assert statuses == [400]
    assert world.ledger.attempts == {}


@pytest.mark.parametrize("fate", ["hangs-up", "gateway-504"])
def test_a_lost_reply_is_final(own_world: World, own_app: App, fate: str, sdk: Any) -> None:
    make, ask = sdk
    with signing_time(own_world), make(own_world, own_app) as client:
        statuses = attempts_of(client)
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="charged"):
            ask(client, directive(fate=fate))
        assert statuses == [424]
    assert own_world.ledger.billed_calls == 1
    own_world.assert_unsettled(own_app)


def test_too_fast_is_repeated_after_the_time_that_it_is_told(world: World, sdk: Any) -> None:
    make, ask = sdk
    app = App(world.api).register(rate_limits=SHORT)
    with make(world, app) as client:
        statuses = attempts_of(client)
        for _ in range(2):
            ask(client, "hello")
        assert statuses[0] == statuses[-1] == 200
        assert statuses.count(200) == 2
        assert len(statuses) <= 4
    world.assert_equal(app)


def test_wrong_credentials_are_final(world: World, app: App, sdk: Any) -> None:
    """Each SDK raises its own error for them: the one of AWS's is for a 403."""
    make, ask = sdk
    by_aws = make is by_signature
    with make(world, app) as client:
        statuses = attempts_of(client)
        path = f"{app.path}/credentials/revoke"
        assert world.api.provision("POST", path, {"reason": "leaked"}).status == 200
        denied = (openai.AuthenticationError, anthropic.AuthenticationError)
        with pytest.raises(
            anthropic.PermissionDeniedError if by_aws else denied, match="invalid credentials"
        ):
            ask(client, "hello")
        assert statuses == [403 if by_aws else 401]
    until(lambda: world.ledger.attempts == {})


@pytest.mark.parametrize("make", [by_openai, by_anthropic])
def test_a_path_that_is_not_served_is_not_found(world: World, app: App, make: Any) -> None:
    """One attempt, and the exception names the path that there is."""
    with make(world, app) as client:
        statuses = attempts_of(client)
        missing = (openai.NotFoundError, anthropic.NotFoundError)
        with pytest.raises(missing, match=r"unknown path /bedrock/.*/v1/models: send POST to /bed"):
            client.models.list()
        assert statuses == [404]
    assert world.ledger.attempts == {}


@pytest.mark.parametrize("make", [by_openai, by_anthropic])
def test_what_bedrock_throttles_is_the_sdks_own_error(scripted: ScriptedWorld, make: Any) -> None:
    """Also where Bedrock answers in AWS's form. No attempt is charged."""
    ask = ask_openai if make is by_openai else ask_anthropic

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        headers = ("x-amzn-errortype: ThrottlingException", "retry-after-ms: 1")
        peer.sendall(whole(b'{"message":"slow down"}', *headers, status="429 X"))

    with scripted(answer) as (world, upstream, app):
        with make(world, app) as client:
            limited = (openai.RateLimitError, anthropic.RateLimitError)
            with pytest.raises(limited, match="slow down"):
                ask(client, "hello")
        assert len(upstream.requests) == 3
    until(lambda: app.books() == Books(0, 0, 0), app.books)
