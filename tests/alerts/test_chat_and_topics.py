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
from pricekeeper.alerts import Channel, ChannelKind, Guard
from pricekeeper.alerts.alert import (
    Alert,
    AlertKind,
    Finding,
    Owner,
    Party,
    alert_body,
    foreign,
    parse_body,
)
from pricekeeper.alerts.channel import ChannelAddress
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.sns import Topics, publish_fields
from pricekeeper.alerts.webhook import HttpSender, send_to_chat
from pricekeeper.clock import ManualClock
from pricekeeper.errors import DeliveryError
from pricekeeper.values import OrgId

HOSTILE = (
    "@all <!channel> <@U123>\n[Renew](https://evil.example) `*_~ \u202e&amp; mail@evil.example"
)
HARMLESS = (
    "`@\u200ball \u2039!channel\u203a \u2039@\u200bU123\u203a "
    "[Renew](https:\u200b/\u200b/\u200bevil.\u200bexample)"
    " \u02cb*_~ \uff06amp; mail@\u200bevil.\u200bexample`"
)
ORG_ID = OrgId("0b7c6a52-9d0e-4f3a-8c5b-2f1f6f7a9e11")
BODY = alert_body(
    Alert(
        "0192a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b",
        1_769_182_245_000,
        Finding(
            kind=AlertKind.BUDGET,
            party=Party(Owner(ORG_ID), "Acme"),
            identity=(),
            title=f"Ümläut & {foreign(HOSTILE)}: 80 % " + "is spent " * 20,
            text=f"$160.20 of {foreign(HOSTILE)} and {foreign('')}is spent.",
            next_step="See what is left: pricekeeper budgets <ORG>",
            about={"threshold_pct": 80},
            lasts_until_ms=0,
        ),
    )
)
ALERT = parse_body(BODY)


def channel(kind: ChannelKind, url: str) -> OpenChannel:
    return OpenChannel(Channel("ops", kind, ""), ChannelAddress(url=url))


async def test_a_chat_gets_words_in_which_nothing_is_a_command(endpoint: Endpoint) -> None:
    """Names of organisations can't mention; the id shows a repeated alert."""
    http = HttpSender(LOOPBACK)
    await send_to_chat(http, channel(ChannelKind.SLACK, endpoint.url), ALERT.id, BODY)
    endpoint.answer = lambda _: 404
    with pytest.raises(DeliveryError, match="answered HTTP 404") as failed:
        await send_to_chat(http, channel(ChannelKind.SLACK, endpoint.url), ALERT.id, BODY)
    await http.close()

    assert failed.value.is_refused
    (taken, _) = endpoint.requests
    assert taken.json.keys() == {"text"}
    title, text, next_step, alert_id = taken.json["text"].split("\n")
    assert title.startswith(f"*Ümläut &amp; {HARMLESS}: 80 %")
    assert text == f"$160.20 of {HARMLESS} and is spent."
    assert next_step == "See what is left: pricekeeper budgets &lt;ORG&gt;"
    assert alert_id == f"`{ALERT.id}`"
    assert (taken.headers["content-type"], taken.id) == ("application/json", ALERT.id)


def publisher(*listed: str) -> Topics:
    return Topics(ManualClock(1_769_182_245_000), Guard(topics=listed))


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
    await publisher(topic).send(to, ALERT.id, BODY)

    (sent,) = topics.requests
    message = json.loads(sent["Message"])
    assert message["default"] == BODY.decode()
    assert message["email"].startswith(
        "$160.20 of @\u200ball <!channel> <@\u200bU123> [Renew](https:\u200b"
    )
    assert message["sms"].startswith("Ümläut & @\u200ball ")
    assert "\u202e" not in message["default"]
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
    assert "https: / / evil. example" in sent["Subject"]


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
    """The error's name is shown, and nothing else of the answer."""
    topics.error = (status, code)
    to = channel(ChannelKind.SNS, TOPIC)
    with pytest.raises(DeliveryError, match=f"SNS answered {code}$") as failed:
        await publisher(TOPIC).send(to, ALERT.id, BODY)
    assert failed.value.is_refused is is_refused


@pytest.mark.parametrize("listed", [[], [f"{TOPIC}.fifo"], [TOPIC[:-1]]])
async def test_a_topic_that_is_taken_off_the_list_gets_nothing(
    topics: TopicsStandIn, listed: list[str]
) -> None:
    """A channel may have named it before; the service's AWS identity is not lent to it."""
    to = channel(ChannelKind.SNS, TOPIC)
    with pytest.raises(DeliveryError, match="PRICEKEEPER_ALERT_TOPICS") as failed:
        await publisher(*listed).send(to, ALERT.id, BODY)
    assert failed.value.is_refused
    assert not topics.requests


def test_the_same_alert_is_the_same_message() -> None:
    assert publish_fields(TOPIC, ALERT.id, BODY) == publish_fields(TOPIC, ALERT.id, BODY)


async def test_without_credentials_a_failed_delivery_says_what_to_do(
    topics: TopicsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of alerts is where an administrator looks."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(DeliveryError, match="no AWS credentials found: set AWS_ACCESS_KEY_ID"):
        await publisher(TOPIC).send(channel(ChannelKind.SNS, TOPIC), ALERT.id, BODY)
    assert not topics.requests
