"""Calls to AWS services off the hot path: what botocore is kept from doing, and what it is for."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from http_handler import Handler, serving
from pricekeeper.aws import CHECK_SIGNATURE, AwsCallError, AwsClient
from pricekeeper.clock import ManualClock
from programs import run_program
from secrets_manager import Refusal, SecretsManagerStandIn, running_secrets_manager

NOW_MS = 1_769_182_245_000
SECRET = "v1:the-pepper"
REDIRECTS = [301, 302, 303, 307, 308]


class QuickClock(ManualClock):
    """Counts pauses, and waits for none."""

    pauses = 0

    async def sleep_ms(self, duration_ms: int) -> None:
        del duration_ms
        self.pauses += 1


class Server:
    """Answers every request with one status and some headers; it may read only a part of a body."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.paths: list[str] = []
        self.body_starts = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.bytes_read = 0


@pytest.fixture
def server() -> Iterator[Server]:
    answering = Server()

    class Answers(Handler):
        def answer(self) -> None:
            answering.paths.append(self.path)
            if self.command != "PUT":
                self.read()
                answering.may_answer.wait(60)
                self.reply(answering.status, headers=answering.headers)
                return
            self.rfile.read(1)
            answering.body_starts.set()
            answering.may_answer.wait(60)
            while part := self.rfile.read1(1 << 20):
                answering.bytes_read += len(part)

    with serving(Answers) as answering.url:
        yield answering
        answering.may_answer.set()


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretsManagerStandIn]:
    with running_secrets_manager(pepper=SECRET) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", running.url)
        yield running


def client_of(
    service: str = "secretsmanager",
    *,
    endpoint: str | None = None,
    attempts_max: int = 3,
    silence_secs: float = 60,
    clock: QuickClock | None = None,
) -> AwsClient:
    return AwsClient(
        service,
        clock or QuickClock(NOW_MS),
        attempts_max=attempts_max,
        silence_secs=silence_secs,
        region="us-east-1",
        endpoint=endpoint,
    )


async def read(client: AwsClient) -> str:
    return await client.call(
        "get_secret_value", lambda reply: str(reply["SecretString"]), SecretId="pepper"
    )


def test_botocore_is_imported_by_the_first_call() -> None:
    """A service that publishes and exports nothing does not pay for the import."""
    program = """
import sys
import pricekeeper.bootstrap, pricekeeper.alerts.sns, pricekeeper.export.s3
from pricekeeper.aws import AwsClient
from pricekeeper.clock import SystemClock
AwsClient("sns", SystemClock(), attempts_max=1, silence_secs=1)
print([name for name in sys.modules if name.partition(".")[0] == "botocore"])
"""
    done = run_program(program)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("service", "operation", "parameters"),
    [
        ("sns", "publish", {"Message": "a", "TopicArn": "b"}),
        ("secretsmanager", "get_secret_value", {"SecretId": "a"}),
        ("s3", "get_object", {"Bucket": "bucket", "Key": "key"}),
    ],
)
async def test_a_redirect_is_not_followed(
    server: Server, service: str, operation: str, parameters: dict[str, str]
) -> None:
    """It would take a signed request to an address that no operator has named.

    botocore itself follows those of S3, without end if each request is redirected.
    """
    client = client_of(service, endpoint=server.url)
    named: list[dict[str, str]] = [{}, {"x-amz-bucket-region": "eu-central-1"}]
    for requests, (server.status, headers) in enumerate(product(REDIRECTS, named), start=1):
        server.headers = {"location": f"{server.url}/elsewhere", **headers}
        refusal = f"HTTP {server.status}: redirects are not followed"
        with pytest.raises(AwsCallError, match=refusal) as failed:
            await client.call(operation, dict, **parameters)
        assert failed.value.status == server.status
        assert len(server.paths) == requests


async def test_botocore_repeats_nothing(server: Server) -> None:
    """A repeated publish is a second message; the caller decides how often to repeat."""
    client = client_of("sns", endpoint=server.url, attempts_max=1)
    for requests, server.status in enumerate((429, 500, 503), start=1):
        with pytest.raises(AwsCallError):
            await client.call("publish", dict, Message="a", TopicArn="b")
        assert len(server.paths) == requests


async def test_a_silent_service_ends_an_attempt(server: Server) -> None:
    server.may_answer.clear()
    clock = QuickClock(NOW_MS)
    client = client_of(endpoint=server.url, attempts_max=2, silence_secs=0.05, clock=clock)
    with pytest.raises(AwsCallError, match="ReadTimeoutError") as failed:
        await read(client)
    assert (failed.value.status, clock.pauses) == (0, 1)


async def test_calls_take_no_thread_of_the_event_loop(server: Server) -> None:
    """The gateway hashes large bodies there while a service says nothing."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    server.may_answer.clear()

    def thread_of(_: dict[str, object]) -> str:
        return threading.current_thread().name

    client = client_of(endpoint=server.url)
    call = asyncio.create_task(client.call("get_secret_value", thread_of, SecretId="pepper"))
    await asyncio.sleep(0)  # it is in its thread
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(lambda: "free") == "free"
    server.may_answer.set()
    assert (await call).startswith("pricekeeper-aws")


async def test_newer_keys_are_found_after_a_refusal(
    standin: SecretsManagerStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))

    def write(token: str) -> None:
        keys.write_text(
            f"[default]\naws_access_key_id = {standin.access_key}\n"
            f"aws_secret_access_key = {standin.secret_key}\naws_session_token = {token}\n"
        )

    write("old")
    client = client_of()
    assert await read(client) == SECRET
    standin.refusals = [Refusal("ExpiredTokenException")]
    write("new")
    assert await read(client) == SECRET
    assert standin.tokens == ["old", "old", "new"]


async def test_keys_that_are_old_when_they_come_are_an_error_of_ours(
    standin: SecretsManagerStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That is a bare `RuntimeError` of botocore; a job knows one kind of error, and tries again."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    keys, config = tmp_path / "keys.json", tmp_path / "config"
    parts = {"AccessKeyId": "A", "SecretAccessKey": "b", "SessionToken": "c"}
    keys.write_text(json.dumps({"Version": 1, "Expiration": "2020-01-01T00:00:00Z", **parts}))
    config.write_text(f"[default]\ncredential_process = cat {keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(AwsCallError, match="still expired") as failed:
        await read(client_of())
    assert (failed.value.status, failed.value.is_passing) == (0, True)
    assert not standin.requests


async def test_an_error_does_not_quote_the_request(standin: SecretsManagerStandIn) -> None:
    """Neither in its text nor in the error before it, which logs would show."""
    standin.secret_key = "another"
    with pytest.raises(AwsCallError) as failed:
        await read(client_of())
    assert str(failed.value) == f"InvalidSignatureException: {CHECK_SIGNATURE}"
    assert failed.value.__suppress_context__
    assert failed.value.__cause__ is None


async def test_closing_the_file_ends_an_upload(server: Server, tmp_path: Path) -> None:
    """A cancelled export leaves no thread that sends gigabytes."""
    server.may_answer.clear()
    file = tmp_path / "large"
    with file.open("wb") as large:
        large.truncate(256 << 20)
    client = client_of("s3", endpoint=server.url, attempts_max=1)
    with file.open("rb") as body:
        call = asyncio.create_task(client.call("put_object", dict, Bucket="b", Key="k", Body=body))
        await asyncio.to_thread(server.body_starts.wait)
    server.may_answer.set()
    with pytest.raises(AwsCallError) as failed:
        await call
    assert failed.value.status == 0
    assert server.bytes_read < 256 << 20
