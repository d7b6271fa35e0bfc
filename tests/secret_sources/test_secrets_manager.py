"""AWS Secrets Manager over its wire protocol, against a stand-in that botocore checks."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session

from free_port import free_port
from pricekeeper.clock import ManualClock
from pricekeeper.errors import SettingsError
from pricekeeper.secret_sources import AWS_ATTEMPTS_MAX, SecretSource, open_source
from pricekeeper.settings.locations import AwsSecret, parse_secret_location
from secrets_manager import (
    MODEL,
    OPERATION,
    Refusal,
    SecretsManagerStandIn,
    running_secrets_manager,
)

SETTING = "PRICEKEEPER_PEPPER"
ENDPOINT = "AWS_ENDPOINT_URL_SECRETS_MANAGER"
REFUSALS = [
    "AccessDeniedException",
    "DecryptionFailure",
    "InvalidParameterException",
    "InvalidRequestException",
    "ResourceNotFoundException",
    "UnrecognizedClientException",
]
PASSING: list[Refusal | bytes] = [
    Refusal("InternalServiceError", 500),
    Refusal("ThrottlingException", 400),
    Refusal("ServiceUnavailable", 503),
    Refusal("ExpiredTokenException", 400),
    b"<html>a proxy's own page</html>",
]
WITHOUT_TEXT: list[Refusal | bytes] = [
    b"{}",
    b'{"SecretString": 5}',
    b'{"SecretString": ""}',
    b'{"SecretBinary": "!"}',
    b'{"SecretBinary": "/w=="}',
]


class QuickClock(ManualClock):
    """The real time, in which pauses take none."""

    async def sleep_ms(self, duration_ms: int) -> None:
        self.advance_ms(duration_ms)


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretsManagerStandIn]:
    with running_secrets_manager(pepper="v1:the-pepper") as running:
        monkeypatch.setenv(ENDPOINT, running.url)
        yield running


def client_of(**options: Any) -> Any:
    """Make botocore's own client."""
    return Session().create_client("secretsmanager", region_name="us-east-1", **options)


def source_of(name: str = "pepper", region: str | None = None) -> SecretSource:
    return open_source(SETTING, AwsSecret(name, region), QuickClock())


async def read(name: str = "pepper", region: str | None = None) -> str:
    return await source_of(name, region).read()


async def refused(name: str = "pepper", source: SecretSource | None = None) -> str:
    with pytest.raises(SettingsError) as told:
        await (source or source_of(name)).read()
    assert told.value.setting == SETTING
    assert f"aws:{name}" in str(told.value)
    return str(told.value)


class TestTheStandIn:
    """As botocore sees it."""

    def test_botocore_reads_its_answers(self, standin: SecretsManagerStandIn) -> None:
        """Every field that the model has, of the type that the model says."""
        standin.secrets["binary"] = b"\x00\xff"
        client = client_of()
        found = client.get_secret_value(SecretId="pepper")
        assert found["SecretString"] == "v1:the-pepper"
        assert found["CreatedDate"].year == 2026
        assert client.get_secret_value(SecretId="binary")["SecretBinary"] == b"\x00\xff"
        assert client.get_secret_value(SecretId=standin.arn("pepper"))["Name"] == "pepper"
        assert OPERATION.output_shape is not None
        members = OPERATION.output_shape.members.keys()
        assert found.keys() - {"ResponseMetadata"} <= members

    def test_botocore_reads_its_refusals(self, standin: SecretsManagerStandIn) -> None:
        client = client_of(config=Config(retries={"max_attempts": 0}))
        for name in REFUSALS:
            standin.always = Refusal(name, message="because")
            with pytest.raises(ClientError) as told:
                client.get_secret_value(SecretId="pepper")
            assert told.value.response["Error"] == {"Code": name, "Message": "because"}

    def test_its_refusals_are_those_of_the_model(self) -> None:
        own = {shape.name for shape in OPERATION.error_shapes}
        assert own <= {*REFUSALS, "InternalServiceError"}
        assert MODEL.metadata["protocol"] == "json"

    def test_it_refuses_what_is_signed_with_another_key(
        self, standin: SecretsManagerStandIn
    ) -> None:
        client = client_of(aws_access_key_id=standin.access_key, aws_secret_access_key="another")
        with pytest.raises(ClientError, match="InvalidSignatureException"):
            client.get_secret_value(SecretId="pepper")
        assert standin.requests == []


class TestReading:
    async def test_a_secret_is_read_by_name_or_arn(self, standin: SecretsManagerStandIn) -> None:
        standin.secrets["binary"] = "v1:überall".encode()
        assert await read() == "v1:the-pepper"
        assert await read("binary") == "v1:überall"
        arn = standin.arn("pepper", "eu-central-1")
        location = parse_secret_location(SETTING, f"aws:{arn}")
        assert location == AwsSecret(arn, "eu-central-1")
        assert await read(arn, "eu-central-1") == "v1:the-pepper"
        assert standin.requests[0] == {"SecretId": "pepper"}

    async def test_a_session_token_goes_along(
        self, standin: SecretsManagerStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As roles of tasks and instances have one; it is part of what is signed."""
        monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
        assert await read() == "v1:the-pepper"
        assert standin.tokens == ["a-session-token"]

    async def test_what_passes_is_asked_again(self, standin: SecretsManagerStandIn) -> None:
        source = source_of()
        for passing in PASSING:
            standin.refusals = [passing, passing]
            standin.requests.clear()
            assert await source.read() == "v1:the-pepper"
            assert len(standin.requests) == 3

    async def test_but_not_for_ever(self, standin: SecretsManagerStandIn) -> None:
        standin.always = Refusal("ThrottlingException", message="slower")
        assert "ThrottlingException: slower" in await refused()
        assert len(standin.requests) == AWS_ATTEMPTS_MAX

    async def test_a_refusal_is_told_at_once(self, standin: SecretsManagerStandIn) -> None:
        source = source_of()
        for asked, name in enumerate(REFUSALS, start=1):
            standin.always = Refusal(name, message="because")
            assert f"GetSecretValue: {name}: because" in await refused(source=source)
            assert len(standin.requests) == asked

    async def test_a_missing_secret_is_told(self, standin: SecretsManagerStandIn) -> None:
        assert "ResourceNotFoundException" in await refused("nothing-here")
        assert standin.requests == [{"SecretId": "nothing-here"}]

    async def test_a_refused_signature_tells_nothing_of_the_request(
        self, standin: SecretsManagerStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """AWS quotes the request in such an error, session token and all."""
        monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
        standin.secret_key = "another"
        told = await refused()
        assert "check the credentials and this machine's clock" in told
        assert "a-session-token" not in told
        assert "Canonical" not in told

    async def test_an_answer_without_text_is_told(self, standin: SecretsManagerStandIn) -> None:
        source = source_of()
        for reply in WITHOUT_TEXT:
            standin.refusals = [reply] * AWS_ATTEMPTS_MAX
            assert "the reply has no secret that is text" in await refused(source=source)

    async def test_nobody_is_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{free_port()}")
        assert "EndpointConnectionError: Could not connect" in await refused()
        with monkeypatch.context() as without:
            without.delenv("AWS_DEFAULT_REGION")
            assert "set AWS_DEFAULT_REGION" in await refused()
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        assert "no AWS credentials found" in await refused()
