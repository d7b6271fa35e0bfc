"""Alerts to a chat, and to topics of Amazon SNS: on the wire, as the other side reads them."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.session import Session

from alerts.conftest import LOOPBACK
from alerts.endpoint import Endpoint
from pricekeeper.alerts import Channel, ChannelKind
from pricekeeper.alerts.body import AlertBody, encoded_body
from pricekeeper.alerts.channel import Address
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.slack import Slack
from pricekeeper.alerts.sns import Topics, publish_fields
from pricekeeper.alerts.webhook import HttpSender
from pricekeeper.clock import ManualClock
from pricekeeper.errors import DeliveryError

TOPIC = "arn:aws:sns:eu-central-1:123456789012:alerts"
MODEL = ServiceModel(Session().get_service_data("sns"), "sns")
PUBLISH = MODEL.operation_model("Publish")
ACCESS_KEY, SECRET_KEY = "AKIDFORTESTSONLY", "secretForTestsOnly"
ALERT = AlertBody(
    id="0192a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b",
    kind="BUDGET",
    at="2026-01-23T15:30:45Z",
    title="Ümläut <!channel> & Co:\n80 % " + "is spent " * 20,
    text="$160.20 of $200.00 <@U123> is spent.",
    next="See what is left: pricekeeper budgets",
    about={"threshold_pct": 80},
    org_id="0b7c6a52-9d0e-4f3a-8c5b-2f1f6f7a9e11",
    org_name="Acme",
)
BODY = encoded_body(ALERT)


def channel(kind: ChannelKind, url: str) -> OpenChannel:
    return OpenChannel(Channel("ops", kind, ""), Address(url=url))


async def test_a_chat_gets_words_in_which_nothing_is_a_command(endpoint: Endpoint) -> None:
    """Names of organisations mention nobody; the id tells a repeated one."""
    http = HttpSender(LOOPBACK)
    await Slack(http).send(channel(ChannelKind.SLACK, endpoint.url), ALERT.id, BODY)
    endpoint.answer = lambda _: 404
    with pytest.raises(DeliveryError, match="answered HTTP 404") as failed:
        await Slack(http).send(channel(ChannelKind.SLACK, endpoint.url), ALERT.id, BODY)
    await http.close()

    assert failed.value.is_refused
    (taken, _) = endpoint.requests
    assert taken.json.keys() == {"text"}
    title, text, next_step, alert_id = taken.json["text"].split("\n")
    assert title.startswith("*Ümläut &lt;!channel&gt; &amp; Co: 80 %")
    assert text == "$160.20 of $200.00 &lt;@U123&gt; is spent."
    assert (next_step, alert_id) == (ALERT.next, f"`{ALERT.id}`")
    assert (taken.headers["content-type"], taken.id) == ("application/json", ALERT.id)


@dataclass
class TopicsStandIn:
    """What answers in place of SNS, with its query protocol; botocore checks the signatures."""

    url: str = ""
    error: tuple[int, str] | None = None
    requests: list[dict[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not _is_signed({name.lower(): value for name, value in request.headers.items()}, body):
            return self._refuse(403, "SignatureDoesNotMatch")
        self.requests.append(dict(parse_qsl(body.decode(), strict_parsing=True)))
        if self.error is not None:
            return self._refuse(*self.error)
        answer = (
            '<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishResult>'
            "<MessageId>567910cd-659e-55d4-8ccb-5aaf14679dc0</MessageId></PublishResult>"
            "<ResponseMetadata><RequestId>d74b8436</RequestId></ResponseMetadata></PublishResponse>"
        )
        return web.Response(text=answer, content_type="text/xml")

    def _refuse(self, status: int, code: str) -> web.Response:
        answer = (
            '<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender'
            f"</Type><Code>{code}</Code><Message>{SECRET_KEY}</Message></Error></ErrorResponse>"
        )
        assert PUBLISH.output_shape is not None
        parsed = create_parser("query").parse(
            {"body": answer.encode(), "headers": {}, "status_code": status}, PUBLISH.output_shape
        )
        assert parsed["Error"]["Code"] == code
        return web.Response(status=status, text=answer, content_type="text/xml")


def _is_signed(headers: dict[str, str], body: bytes) -> bool:
    parts = dict(re.findall(r"(\w+)=([^, ]+)", headers["authorization"]))
    signed = {name: headers[name] for name in parts["SignedHeaders"].split(";")}
    request = AWSRequest("POST", f"http://{headers['host']}/", headers=signed, data=body)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "sns", "eu-central-1")
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return bool(parts["Signature"] == auth.signature(text, request))


@asynccontextmanager
async def open_topics(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TopicsStandIn]:
    standin = TopicsStandIn()
    app = web.Application()
    app.router.add_post("/", standin.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    try:
        yield standin
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("topic", [TOPIC, f"{TOPIC}.fifo"])
async def test_a_topic_gets_what_botocore_would_send(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Field by field, by botocore's model of Publish; a FIFO topic has the id as its key."""
    async with open_topics(monkeypatch) as topics:
        to = channel(ChannelKind.SNS, topic)
        await Topics(ManualClock(1_769_182_245_000)).send(to, ALERT.id, BODY)

    (sent,) = topics.requests
    message = json.loads(sent["Message"])
    assert message["default"] == BODY.decode()
    assert message["email"].startswith(ALERT.text)
    attributes = {"id": ALERT.id, "kind": "BUDGET", "org_id": ALERT.org_id}
    params: dict[str, Any] = {
        "TopicArn": topic,
        "Subject": sent["Subject"],
        "MessageStructure": "json",
        "Message": sent["Message"],
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
        },
    }
    if topic.endswith(".fifo"):
        params |= {"MessageGroupId": "pricekeeper", "MessageDeduplicationId": ALERT.id}
    wanted = create_serializer("query").serialize_to_request(params, PUBLISH)
    assert sent == wanted["body"]
    assert re.fullmatch(r"[ -~]{1,99}", sent["Subject"])


@pytest.mark.parametrize(
    ("status", "code", "is_refused"),
    [
        (403, "AuthorizationError", False),
        (404, "NotFound", False),
        (400, "InvalidParameter", True),
        (429, "Throttling", False),
        (500, "InternalError", False),
    ],
)
async def test_what_a_topic_does_not_take(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, *, is_refused: bool
) -> None:
    """The name of the error is told, and nothing else of the answer."""
    async with open_topics(monkeypatch) as topics:
        topics.error = (status, code)
        to = channel(ChannelKind.SNS, TOPIC)
        with pytest.raises(DeliveryError, match=f"SNS answered {code}$") as failed:
            await Topics(ManualClock(1_769_182_245_000)).send(to, ALERT.id, BODY)
    assert failed.value.is_refused is is_refused


def test_the_same_alert_is_the_same_message() -> None:
    assert publish_fields(TOPIC, ALERT.id, BODY) == publish_fields(TOPIC, ALERT.id, BODY)
