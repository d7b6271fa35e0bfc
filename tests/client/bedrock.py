"""A stand-in for Bedrock that the real botocore calls. The model id says what happens to a call."""

import binascii
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import botocore.session
from botocore.config import Config

SILENT = "silent"
THROTTLED_AT_LAST = "throttled-at-last"
USAGE = {"inputTokens": 1_000, "outputTokens": 100, "totalTokens": 1_100}
REFUSALS = {
    "ThrottlingException": 429,
    "ValidationException": 400,
    "AccessDeniedException": 403,
    "ExpiredTokenException": 403,
    "ServiceUnavailableException": 503,
    "ModelNotReadyException": 429,
}
"""What Bedrock may answer before any output, and with which status."""


class Bedrock:
    """A client of the stand-in, and how often the stand-in was called."""

    def __init__(self, url: str, attempts: int) -> None:
        self.calls = 0
        self._client = _client(url, attempts, read_timeout=60)
        self._hasty = _client(url, attempts, read_timeout=0.05)

    def converse(self, fate: str) -> Any:
        """Call a model; its id says what happens."""
        client = self._hasty if fate == SILENT else self._client  # it never answers, so why wait
        return client.converse(modelId=fate, messages=_messages())

    def converse_stream(self, fate: str) -> Any:
        """The same, as a stream."""
        return self._client.converse_stream(modelId=fate, messages=_messages())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._hasty.close()


class Server(ThreadingHTTPServer):
    """The stand-in; ``attempts`` is how often botocore tries."""

    def __init__(self, attempts: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.over = threading.Event()
        self.attempts = attempts
        self.bedrock = Bedrock(f"http://127.0.0.1:{self.server_port}", attempts)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bedrock.calls += 1
        _, _, fate, operation = unquote(self.path).split("/")
        if fate == SILENT:
            self.server.over.wait()  # longer than any client waits
        early = self.server.bedrock.calls < self.server.attempts
        self.close_connection = fate in (SILENT, "hangs-up") or (
            fate == THROTTLED_AT_LAST and early
        )
        if not self.close_connection:
            self._answer(*_answer(fate, operation))

    def _answer(self, status: int, kind: str, body: bytes, code: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("x-amzn-ErrorType", code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: what is asked is counted."""


@contextmanager
def running_bedrock(attempts: int = 1) -> Iterator[Bedrock]:
    """Run the stand-in on a free port."""
    with Server(attempts) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.bedrock
        finally:
            server.over.set()
            server.bedrock.close()
            server.shutdown()
            thread.join()


def _answer(fate: str, operation: str) -> tuple[int, str, bytes, str]:
    code = "ThrottlingException" if fate == THROTTLED_AT_LAST else fate
    if code in REFUSALS:
        return REFUSALS[code], "application/json", b'{"message": "of the stand-in"}', code
    if fate == "gateway":
        return 504, "text/html", b"<html>Gateway Time-out</html>", ""
    if operation == "converse-stream":
        return 200, "application/vnd.amazon.eventstream", _stream(fate), ""
    return 200, "application/json", _reply(), ""


def _client(url: str, attempts: int, read_timeout: float) -> Any:
    return botocore.session.get_session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="example",
        config=Config(read_timeout=read_timeout, retries={"total_max_attempts": attempts}),
    )


def _messages() -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"text": "hello"}]}]


def _reply() -> bytes:
    message = {"role": "assistant", "content": [{"text": "hello"}]}
    reply = {"output": {"message": message}, "stopReason": "end_turn", "usage": USAGE}
    return json.dumps({**reply, "metrics": {"latencyMs": 1}}).encode()


def _stream(fate: str) -> bytes:
    """A whole stream, or one that ends with an error of Bedrock's in the middle."""
    text = {"contentBlockIndex": 0, "delta": {"text": "hello"}}
    frames = [
        _frame("event", "messageStart", {"role": "assistant"}),
        _frame("event", "contentBlockDelta", text),
    ]
    if fate == "breaks-off":
        frames.append(_frame("exception", "modelStreamErrorException", {"message": "broke off"}))
    else:
        frames.append(_frame("event", "messageStop", {"stopReason": "end_turn"}))
        frames.append(_frame("event", "metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}))
    return b"".join(frames)


def _frame(kind: str, name: str, payload: dict[str, Any]) -> bytes:
    """One message of AWS's event stream encoding."""
    fields = {
        ":message-type": kind,
        f":{kind}-type": name,
        ":content-type": "application/json",
    }
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(value))
        + value.encode()
        for key, value in fields.items()
    )  # fmt: skip
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    message = prelude + headers + body
    return message + struct.pack("!I", binascii.crc32(message))
