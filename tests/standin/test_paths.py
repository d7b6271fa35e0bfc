"""The stand-in's paths, token counts, limits and process."""

import base64
import json
import signal
import socket
import subprocess
import sys
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.exceptions import ClientError

from pricekeeper.standin import Ledger, Running
from pricekeeper.standin.app import BODY_BYTES_MAX
from standin import shapes
from standin.wire import CLAUDE, ask, claude_body, directive, messages

PROFILE = (
    "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-3-haiku-v1:0"
)


@pytest.mark.parametrize("model", [CLAUDE, f"us.{CLAUDE}", PROFILE])
def test_the_real_client_encodes_ids_and_they_are_decoded(
    standin: Running, bedrock: Any, model: str
) -> None:
    bedrock.converse(modelId=model, messages=messages())
    bedrock.invoke_model(modelId=model, body=json.dumps(claude_body()))["body"].close()

    assert [entry.model_id for entry in standin.ledger.entries] == [model, model]


@pytest.mark.parametrize("safe", ["", ":", ":/"])
@pytest.mark.parametrize("operation", ["converse", "invoke"])
def test_an_id_may_be_encoded_or_not(standin: Running, safe: str, operation: str) -> None:
    body = {**claude_body(), "messages": messages()}
    answer = ask(standin, "POST", f"/model/{quote(PROFILE, safe=safe)}/{operation}", body)

    assert answer.status == 200
    assert standin.ledger.entries[0].model_id == PROFILE


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/model/{CLAUDE}/converse"),
        ("POST", f"/model/{CLAUDE}/convers"),
        ("POST", "/model/converse"),
        ("POST", "/"),
    ],
)
def test_another_path_is_no_operation(standin: Running, method: str, path: str) -> None:
    answer = ask(standin, method, path, {})

    assert answer.status == 404
    assert answer.headers["x-amzn-errortype"] == "UnknownOperationException"
    assert standin.ledger.attempts == {}


def test_tokens_are_counted_as_they_would_be_read_and_nothing_is_billed(
    standin: Running, bedrock: Any
) -> None:
    body = json.dumps(claude_body("x" * 400)).encode()
    invoke = bedrock.count_tokens(modelId=CLAUDE, input={"invokeModel": {"body": body}})
    asked = {"converse": {"messages": messages("x" * 400)}}
    converse = bedrock.count_tokens(modelId=CLAUDE, input=asked)

    assert invoke["inputTokens"] == converse["inputTokens"] == 100
    assert standin.ledger.attempts == {"CountTokens": 2}
    assert standin.ledger.entries == []


def test_a_count_is_what_the_service_model_says(standin: Running) -> None:
    body = base64.b64encode(json.dumps(claude_body()).encode()).decode()
    answer = ask(
        standin, "POST", f"/model/{CLAUDE}/count-tokens", {"input": {"invokeModel": {"body": body}}}
    )

    assert shapes.complaints(shapes.output_of("CountTokens"), answer.json) == []


@pytest.mark.parametrize(
    "given",
    [{}, {"invokeModel": {"body": "?"}}, {"invokeModel": {"body": "MQ=="}}, {"converse": {}}],
)
def test_a_count_of_nothing_is_refused(standin: Running, given: dict[str, Any]) -> None:
    answer = ask(standin, "POST", f"/model/{CLAUDE}/count-tokens", {"input": given})

    assert answer.headers["x-amzn-errortype"] == "ValidationException"


def test_a_count_may_be_refused(bedrock: Any) -> None:
    asked = {"converse": {"messages": messages(directive(fate="AccessDeniedException"))}}
    with pytest.raises(bedrock.exceptions.AccessDeniedException):
        bedrock.count_tokens(modelId=CLAUDE, input=asked)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":' * 50_000])
def test_a_body_that_is_no_object_is_refused(standin: Running, body: bytes) -> None:
    status, head = _post_raw(standin, body)

    assert status == 400
    assert b"ValidationException" in head
    assert standin.ledger.entries == []


def test_content_that_is_nested_too_deep_is_refused(standin: Running) -> None:
    deep = b'{"messages":[{"role":"user","content":' + b"[" * 200 + b"]" * 200 + b"}]}"

    assert _post_raw(standin, deep)[0] == 400


def test_a_body_may_have_25_mebibytes_and_no_more(standin: Running, bedrock: Any) -> None:
    with pytest.raises(ClientError, match="RequestEntityTooLargeException"):
        bedrock.converse(modelId=CLAUDE, messages=messages("x" * BODY_BYTES_MAX))

    assert standin.ledger.entries == []


def test_a_caller_that_leaves_before_its_body_is_there_is_not_billed(standin: Running) -> None:
    with socket.create_connection(("127.0.0.1", _port(standin))) as caller:
        head = f"POST /model/{CLAUDE}/converse HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        caller.sendall(head.encode() + b'{"messages":')
    answer = ask(standin, "POST", f"/model/{CLAUDE}/converse", {"messages": messages()})

    assert answer.status == 200
    assert standin.ledger.billed_calls == 1


def test_it_runs_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "pricekeeper.standin"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        standin = Running(process.stdout.readline().strip(), Ledger())
        answer = ask(standin, "POST", f"/model/{CLAUDE}/converse", {"messages": messages()})
        billed = ask(standin, "GET", "/ledger").json["entries"]
        process.send_signal(signal.SIGTERM)

    assert [entry["id"] for entry in billed] == [answer.headers["x-amzn-requestid"]]


def _port(standin: Running) -> int:
    port = urlsplit(standin.url).port
    assert port is not None
    return port


def _post_raw(standin: Running, body: bytes) -> tuple[int, bytes]:
    with socket.create_connection(("127.0.0.1", _port(standin)), timeout=20) as caller:
        head = f"POST /model/{CLAUDE}/converse HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        caller.sendall(head.encode() + b"\r\n\r\n" + body)
        answer = caller.recv(65_536)
    return int(answer.split()[1]), answer
