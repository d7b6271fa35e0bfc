"""Alerts to a chat, and to topics of Amazon SNS: on the wire, as the other side reads them."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from botocore.serialize import create_serializer

from alerts.conftest import LOOPBACK
from alerts.endpoint import Endpoint
from alerts.topics_server import PUBLISH, TOPIC, TopicsStandIn, open_topics
from pricekeeper.alerts import Channel, ChannelKind
from pricekeeper.alerts.body import AlertBody, encoded_body
from pricekeeper.alerts.channel import ChannelAddress
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.slack import send_to_slack
from pricekeeper.alerts.sns import Topics, publish_fields
from pricekeeper.alerts.webhook import HttpSender
from pricekeeper.clock import ManualClock
from pricekeeper.errors import DeliveryError

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
    return OpenChannel(Channel("ops", kind, ""), ChannelAddress(url=url))


async def test_a_chat_gets_words_in_which_nothing_is_a_command(endpoint: Endpoint) -> None:
    """Names of organisations mention nobody; the id tells a repeated one."""
    http = HttpSender(LOOPBACK)
    await send_to_slack(http, channel(ChannelKind.SLACK, endpoint.url), ALERT.id, BODY)
    endpoint.answer = lambda _: 404
    with pytest.raises(DeliveryError, match="answered HTTP 404") as failed:
        await send_to_slack(http, channel(ChannelKind.SLACK, endpoint.url), ALERT.id, BODY)
    await http.close()

    assert failed.value.is_refused
    (taken, _) = endpoint.requests
    assert taken.json.keys() == {"text"}
    title, text, next_step, alert_id = taken.json["text"].split("\n")
    assert title.startswith("*Ümläut &lt;!channel&gt; &amp; Co: 80 %")
    assert text == "$160.20 of $200.00 &lt;@U123&gt; is spent."
    assert (next_step, alert_id) == (ALERT.next, f"`{ALERT.id}`")
    assert (taken.headers["content-type"], taken.id) == ("application/json", ALERT.id)


@pytest.fixture
async def topics(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TopicsStandIn]:
    async with open_topics() as opened:
        for name, value in opened.environment.items():
            monkeypatch.setenv(name, value)
        yield opened


@pytest.mark.parametrize("topic", [TOPIC, f"{TOPIC}.fifo"])
async def test_a_topic_gets_what_botocore_would_send(topics: TopicsStandIn, topic: str) -> None:
    """Field by field, by botocore's model of Publish; a FIFO topic has the id as its key."""
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
    topics: TopicsStandIn, status: int, code: str, *, is_refused: bool
) -> None:
    """The name of the error is told, and nothing else of the answer."""
    topics.error = (status, code)
    to = channel(ChannelKind.SNS, TOPIC)
    with pytest.raises(DeliveryError, match=f"SNS answered {code}$") as failed:
        await Topics(ManualClock(1_769_182_245_000)).send(to, ALERT.id, BODY)
    assert failed.value.is_refused is is_refused


def test_the_same_alert_is_the_same_message() -> None:
    assert publish_fields(TOPIC, ALERT.id, BODY) == publish_fields(TOPIC, ALERT.id, BODY)
