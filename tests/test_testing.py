"""`pricekeeper.testing`: what users test their own programs with."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
import structlog
from botocore.config import Config

import pricekeeper
import pricekeeper.testing
from programs import run_program

PREMIUM_INPUT, PREMIUM_OUTPUT = 4_400_000, 22_000_000
"""What a million tokens of the label cost, as the deployment file has it."""


@pytest.fixture
def bedrock(monkeypatch: pytest.MonkeyPatch) -> Iterator[pricekeeper.testing.Bedrock]:
    with pricekeeper.testing.bedrock() as bedrock:
        for name, value in bedrock.environment.items():
            monkeypatch.setenv(name, value)
        yield bedrock


def messages(text: str = "Hello.") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"text": text}]}]


def client() -> Any:
    """A client that reads the environment of the test, not the one of another."""
    return boto3.Session().client(
        "bedrock-runtime", config=Config(retries={"total_max_attempts": 1})
    )


def test_a_wrapped_call_is_counted_as_the_stand_in_billed_it(
    bedrock: pricekeeper.testing.Bedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment variables are all that the program under test needs."""
    with pricekeeper.testing.service() as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        pricekeeper.wrap(client()).converse(modelId="auto", messages=messages())
        billed = bedrock.ledger.totals
        cost = billed.input_tokens * PREMIUM_INPUT + billed.output_tokens * PREMIUM_OUTPUT
        assert service.spent_usd_micros == cost // 1_000_000
        assert (service.held_usd_micros, service.unsettled_usd_micros) == (0, 0)
        (record,) = service.records()
        assert record["output_tokens"] == billed.output_tokens == 64


def test_one_environment_after_another(
    bedrock: pricekeeper.testing.Bedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test has a service of its own: a client that is wrapped later uses the later one."""
    for _ in range(2):
        with pricekeeper.testing.service() as service:
            for name, value in service.environment.items():
                monkeypatch.setenv(name, value)
            pricekeeper.wrap(client()).converse(modelId="auto", messages=messages())
            assert len(service.records()) == 1


def test_a_stream_that_was_left_is_counted_before_records_are_read(
    bedrock: pricekeeper.testing.Bedrock,
) -> None:
    with pricekeeper.testing.service() as service:
        wrapped = pricekeeper.wrap(client(), service.keeper())
        wrapped.converse_stream(modelId="premium", messages=messages())["stream"].close()
        assert [one["output_tokens"] for one in service.records()] == [64]


def test_budgets_quotas_and_limits_are_the_apps(bedrock: pricekeeper.testing.Bedrock) -> None:
    rpm = {"capacity": 1, "refill_amount": 1, "refill_period_ms": 60_000}
    with pricekeeper.testing.service(
        quotas={"premium": 10_000},
        budgets=[{"name": "tiny", "window": "DAY", "limit_usd_micros": 20_000}],
        rate_limits={"*": {"rpm": rpm}},
        model_ordering=["premium", "standard"],
    ) as service:
        wrapped = pricekeeper.wrap(client(), service.keeper())
        with pytest.raises(pricekeeper.DeniedError) as denied:
            wrapped.converse(
                modelId="premium", messages=messages(), inferenceConfig={"maxTokens": 4_000}
            )
        assert {one.name for one in denied.value.denied_by} == {"tiny", "quota-premium"}
        short = {"maxTokens": 10}
        wrapped.converse(modelId="standard", messages=messages(), inferenceConfig=short)
        with pytest.raises(wrapped.exceptions.ThrottlingException):
            wrapped.converse(modelId="standard", messages=messages(), inferenceConfig=short)
        service.clock.move(minutes=1)
        wrapped.converse(modelId="standard", messages=messages(), inferenceConfig=short)


def test_time_can_be_moved_to_another_day() -> None:
    """A quota is full again, for a keeper that goes by the same clock."""
    clock = pricekeeper.testing.MovableClock(datetime(2027, 1, 31, 12, tzinfo=UTC))
    with (
        pricekeeper.testing.service(quotas={"premium": 1_000}, clock=clock) as service,
        service.keeper() as keeper,
    ):
        keeper.record("premium", 1_000, 100)
        with pytest.raises(pricekeeper.DeniedError) as denied:
            keeper.authorize(10, 10, model="premium")
        assert denied.value.denied_by[0].resets_at == "2027-02-01T00:00:00Z"
        clock.move(days=1)
        assert keeper.authorize(10, 10, model="premium").label == "premium"
        assert service.held_usd_micros == 264


def test_a_hold_expires_when_time_is_moved() -> None:
    with pricekeeper.testing.service() as service, service.keeper() as keeper:
        keeper.authorize(10, 10, model="premium", hold_secs=60)
        assert (service.held_usd_micros, service.unsettled_usd_micros) == (264, 0)
        service.clock.move(minutes=10)
        for _ in range(1_000):
            if service.unsettled_usd_micros:
                break
        assert (service.held_usd_micros, service.unsettled_usd_micros) == (0, 264)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="forward"):
        pricekeeper.testing.MovableClock().move(hours=-1)


def test_a_frozen_app_and_a_service_that_is_gone(bedrock: pricekeeper.testing.Bedrock) -> None:
    with pricekeeper.testing.service() as service:
        wrapped = pricekeeper.wrap(client(), service.keeper())
        service.freeze("too much")
        with pytest.raises(wrapped.exceptions.AccessDeniedException, match="the app is frozen"):
            wrapped.converse(modelId="auto", messages=messages())
        service.unfreeze()
        wrapped.converse(modelId="auto", messages=messages())
        assert service.spent_usd_micros > 0
        service.stop()
        with pytest.raises(pricekeeper.UnavailableError):
            wrapped.converse(modelId="auto", messages=messages())
    assert bedrock.ledger.billed_calls == 1


async def test_it_can_be_asked_from_an_event_loop() -> None:
    with pricekeeper.testing.service() as service:
        async with service.async_keeper() as keeper, keeper.call(10, 10) as call:
            call.used_tokens(8, 9)
        assert service.spent_usd_micros == (8 * PREMIUM_INPUT + 9 * PREMIUM_OUTPUT) // 1_000_000


def test_nothing_of_the_log_is_printed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of a test is the output of the program under test; `logging` has the rest."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    with structlog.testing.capture_logs():
        pass  # a test before that looks at logs
    with pricekeeper.testing.service():
        pass
    assert capfd.readouterr() == ("", "")


def test_without_the_service_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['uvicorn'] = None; import pricekeeper.testing"
    done = run_program(program)
    assert "pip install 'bedrock-price-keeper[server]'" in done.stderr.splitlines()[-1]
