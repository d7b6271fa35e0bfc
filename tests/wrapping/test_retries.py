"""Attempts within one call: each that may be billed is accounted for.

For boto3 and aiobotocore, whose errors have the same names but sometimes other causes.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import (
    ConnectionClosedError,
    EndpointConnectionError,
    EventStreamError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.retries.standard import ExponentialBackoff

from pricekeeper.standin.endpoint import exception_frame
from scraping import until
from wrapping.bodies import encoded
from wrapping.deployment import PRICES
from wrapping.faces import FACES, REFUSALS, call
from wrapping.world import Books, MakeProgram, Program, messages

OPERATIONS = ["converse", "converse_stream", "invoke_model", "invoke_model_with_response_stream"]
CONVERSE: dict[str, Any] = {"modelId": "premium", "messages": messages()}

pytestmark = pytest.mark.parametrize("face", FACES)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait for seconds before another attempt."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0)


def asked(operation: str, **script: Any) -> dict[str, Any]:
    """The parameters of an operation."""
    if operation.startswith("converse"):
        parameters: dict[str, Any] = {"messages": messages(**script)}
        parameters["inferenceConfig"] = {"maxTokens": 50}
        return {"modelId": "premium", **parameters}
    return {"modelId": "premium", "body": encoded("premium", 50, **script)}


@contextlib.contextmanager
def bedrock_that(act: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads each request and then does this to the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the listener is closed
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        _read_request(connection)
                        act(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _read_request(connection: socket.socket) -> None:
    head, _, body = b"", b"", b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65_536)
    head, _, body = head.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(one[15:]) for one in lines if one.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65_536)


def reset(connection: socket.socket) -> None:
    """Close it so that the peer's system says `ECONNRESET`."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answer_nonsense(connection: socket.socket) -> None:
    """Answer 200 with a body that is not JSON."""
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Content-Length: 9\r\nConnection: close\r\n\r\n{nonsense"
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_throttled_twice_and_then_answered_is_one_authorization(
    program: Program, face: str, operation: str
) -> None:
    given = asked(operation, fate="ThrottlingException", fate_times=2)
    outcome = call(face, program, operation, attempts=3, **given)
    assert outcome.error is None
    assert outcome.reply["ResponseMetadata"]["RetryAttempts"] == 2
    assert (program.attempts(), len(program.ledger.entries)) == (3, 1)
    program.assert_exact()
    assert len(program.records()) == 1


@pytest.mark.parametrize("code", [*REFUSALS, "ExpiredTokenException"])
def test_what_bedrock_refused_is_given_back(program: Program, face: str, code: str) -> None:
    for operation in OPERATIONS:
        assert call(face, program, operation, **asked(operation, fate=code)).code == code
    program.assert_nothing()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_attempt_that_was_not_answered_stays_held(
    program: Program, face: str, operation: str
) -> None:
    given = asked(operation, fate="silent")
    outcome = call(face, program, operation, attempts=3, read_timeout=0.1, **given)
    assert isinstance(outcome.error, ReadTimeoutError)
    assert len(program.ledger.entries) == 3
    program.assert_marked(3)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_answer_after_a_timeout_is_exact_and_the_timeout_is_held(
    program: Program, face: str, operation: str
) -> None:
    given = asked(operation, fate="silent", fate_times=1)
    outcome = call(face, program, operation, attempts=3, read_timeout=0.1, **given)
    assert outcome.error is None
    assert len(program.ledger.entries) == 2
    program.tell()
    assert program.books().spent == program.bill // 2
    program.assert_marked(1)


@pytest.mark.parametrize("fate", ["hangs-up", "gateway-504"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_attempt_whose_answer_was_lost_stays_held(
    program: Program, face: str, operation: str, fate: str
) -> None:
    """The connection closes, or a proxy times out: the model has run."""
    outcome = call(face, program, operation, **asked(operation, fate=fate))
    assert outcome.error is not None
    assert fate != "hangs-up" or isinstance(outcome.error, ConnectionClosedError)
    program.assert_marked(1)


def test_a_refusal_after_a_lost_answer_leaves_the_first_attempt_held(
    program: Program, face: str
) -> None:
    with bedrock_that(answer_refusals_but_first()) as url:
        outcome = call(face, program, attempts=2, url=url, **asked("converse"))
    assert outcome.code == "ThrottlingException"
    program.assert_marked(1)


def answer_refusals_but_first() -> Callable[[socket.socket], None]:
    """Hang up at the first attempt, and refuse the others."""
    attempts: list[None] = []

    def act(connection: socket.socket) -> None:
        attempts.append(None)
        if len(attempts) > 1:
            connection.sendall(
                b"HTTP/1.1 429 Too Many Requests\r\nx-amzn-errortype: ThrottlingException\r\n"
                b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
            )

    return act


def answering(head: str, body: bytes) -> Callable[[socket.socket], None]:
    """Answer with that status and these headers."""
    lines = [f"HTTP/1.1 {head}", f"Content-Length: {len(body)}", "Connection: close"]
    return lambda connection: connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


@pytest.mark.parametrize("head", ["403 X", "429 X\r\nContent-Type: text/html"])
def test_a_4xx_without_a_name_is_given_back(program: Program, face: str, head: str) -> None:
    """A proxy that refuses a call has not forwarded it."""
    with bedrock_that(answering(head, b"<html></html>")) as url:
        for operation in OPERATIONS:
            assert call(face, program, operation, url=url, **asked(operation)).error is not None
    program.assert_nothing()


def test_an_error_that_says_what_it_used_is_counted(program: Program, face: str) -> None:
    """As the gateway counts it, although Bedrock names the error."""
    body = b'{"message":"x","usage":{"inputTokens":1000,"outputTokens":100}}'
    head = "500 X\r\nx-amzn-errortype: InternalServerException"
    with bedrock_that(answering(head, body)) as url:
        assert call(face, program, url=url, **asked("converse")).error is not None
    program.tell()
    price = PRICES["premium"]
    expected = (1_000 * price["input"] + 100 * price["output"]) // 1_000_000
    until(lambda: program.books() == Books(expected, 0, 0), program.books)


@pytest.mark.parametrize("operation", ["converse_stream", "invoke_model_with_response_stream"])
def test_a_stream_that_begins_with_an_error_is_given_back(
    program: Program, face: str, operation: str
) -> None:
    frame = exception_frame("throttlingException", b'{"message":"slow down"}')
    head = "200 OK\r\nContent-Type: application/vnd.amazon.eventstream"
    with bedrock_that(answering(head, frame)) as url:
        outcome = call(face, program, operation, url=url, **asked(operation))
    assert isinstance(outcome.error, EventStreamError)
    del outcome
    program.assert_nothing()


@pytest.mark.parametrize(
    ("operation", "end", "fails"),
    [
        *((operation, reset, True) for operation in OPERATIONS),
        *((operation, answer_nonsense, False) for operation in ("converse", "invoke_model")),
    ],
)
def test_a_lost_or_unreadable_answer_may_have_been_billed(
    program: Program, face: str, operation: str, end: Callable[..., None], fails: bool
) -> None:
    """In aiobotocore a reset connection has the name of one that was never made."""
    with bedrock_that(end) as url:
        outcome = call(face, program, operation, url=url, **asked(operation))
    assert (outcome.error is not None) == fails
    program.assert_marked(1)


def test_a_retry_that_the_budget_cannot_hold_is_not_sent(
    make_program: MakeProgram, face: str
) -> None:
    """The first attempt may be billed, so too little is left for a second one."""
    program = make_program(limit_usd_micros=1_000)
    given = asked("converse", fate="silent")
    outcome = call(face, program, attempts=3, read_timeout=0.1, **given)
    assert (outcome.code, outcome.is_modelled) == ("ServiceQuotaExceededException", True)
    assert program.attempts() == 1
    program.assert_marked(1)


def test_a_connection_that_was_refused_gives_everything_back(program: Program, face: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for operation in OPERATIONS:
        outcome = call(face, program, operation, attempts=2, url=url, **asked(operation))
        assert isinstance(outcome.error, EndpointConnectionError)
    program.assert_nothing()


def test_wrong_parameters_take_nothing(program: Program, face: str) -> None:
    outcome = call(face, program, modelId="premium", messages="hello")
    assert isinstance(outcome.error, ParamValidationError)
    program.assert_nothing()
    assert program.keeper.authorizations()["authorizations"] == []


def test_without_credentials_of_aws_everything_is_given_back(
    program: Program, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is authorized before it is signed, and is not sent."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr(
        program,
        "client_arguments",
        lambda config: {
            "region_name": "us-east-1",
            "endpoint_url": program.world.standin.url,
            "config": config,
        },
    )
    # boto3's default session remembers credentials of earlier tests.
    session = botocore.session.get_session()
    monkeypatch.setattr(
        program,
        "made",
        lambda arguments: session.create_client("bedrock-runtime", **arguments),
    )
    outcome = call(face, program, **asked("converse"))
    assert isinstance(outcome.error, NoCredentialsError)
    assert program.attempts() == 0
    program.assert_nothing()


def fail(**_: Any) -> None:
    """Another handler that has a bug."""
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("event", "is_billed"),
    [
        ("before-call.bedrock-runtime", False),
        ("request-created.bedrock-runtime", False),
        ("before-parse.bedrock-runtime.Converse", True),
        ("response-received.bedrock-runtime.Converse", True),
        ("after-call.bedrock-runtime.Converse", True),
    ],
)
def test_an_error_of_another_handler_leaves_held_what_may_be_billed(
    program: Program, face: str, event: str, is_billed: bool
) -> None:
    """And voids calls that were not sent."""
    outcome = call(face, program, before=lambda events: events.register(event, fail), **CONVERSE)
    assert isinstance(outcome.error, ZeroDivisionError)
    assert len(program.ledger.entries) == is_billed
    del outcome
    if is_billed:
        program.assert_marked(1)
    else:
        program.assert_nothing()
