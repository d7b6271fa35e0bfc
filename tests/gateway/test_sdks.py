"""OpenAI's and Anthropic's own packages through the gateway, by a base URL and a key alone.

``make test-clients`` has them, and others, in environments of their own.
"""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from gateway.attempts import signing_time
from gateway.world import App, World, directive
from scraping import until

SHORT = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 600}}}
Ask = Callable[..., Any]


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
    budget = {"name": "all", "window": "DAY", "limit_usd_micros": 5}
    app = App(world.api).register(budgets=[budget])
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
    make, ask = sdk
    with make(world, app) as client:
        statuses = attempts_of(client)
        path = f"{app.path}/credentials/revoke"
        assert world.api.provision("POST", path, {"reason": "leaked"}).status == 200
        denied = (openai.PermissionDeniedError, anthropic.PermissionDeniedError)
        with pytest.raises(denied, match="not valid"):
            ask(client, "hello")
        assert statuses == [403]
    until(lambda: world.ledger.attempts == {})
