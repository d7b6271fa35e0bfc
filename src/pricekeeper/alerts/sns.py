"""Publishes alerts to topics of Amazon SNS.

The service uses its own credentials, in the topic's region, and only topics that the deployment
lists. Subscribers get the alert as JSON, mails its text, phones its title. The alert's id is an
attribute, and the deduplication id of a FIFO topic. A publish is attempted once; the courier
repeats an alert with the same id.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import BREAK, AlertBody, parse_body, plain_words, unlinked
from pricekeeper.alerts.channel import TOPIC, TOPIC_NOT_LISTED
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.webhook import ATTEMPT_SECS, one_attempt
from pricekeeper.aws import SETUP, AwsCallError, AwsClient
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import DeliveryError

REGIONS_MAX: Final = 64
SUBJECT_LENGTH_MAX: Final = 99
_REFUSED: Final = frozenset({"InvalidParameter", "InvalidParameterValue", "ParameterValueInvalid"})
"""SNS refuses this alert but may accept others, so the ones behind it are sent."""


class Topics:
    """Publishes alerts to the topics of channels."""

    def __init__(self, clock: Clock, guard: Guard) -> None:
        self._clock = clock
        self._guard = guard
        self._clients: BoundedCache[str, AwsClient] = BoundedCache(REGIONS_MAX)

    async def send(self, channel: OpenChannel, alert_id: str, body: bytes) -> None:
        topic = channel.address.url
        if topic not in self._guard.topics:  # it was removed from the list
            raise DeliveryError(f"its address {TOPIC_NOT_LISTED}", is_refused=True)
        fields = publish_fields(topic, alert_id, body)
        try:
            async with one_attempt():
                await self._client_for(_region_of(topic)).call("publish", dict, **fields)
        except AwsCallError as error:
            if not error.status:
                why = SETUP.get(error.code, error.code)
                raise DeliveryError(f"the request failed: {why}") from error
            is_refused = error.code in _REFUSED
            raise DeliveryError(f"SNS answered {error.code}", is_refused=is_refused) from error

    def _client_for(self, region: str) -> AwsClient:
        client = self._clients.get(region)
        if client is None:
            client = AwsClient(
                "sns", self._clock, attempts_max=1, silence_secs=ATTEMPT_SECS, region=region
            )
            self._clients.put(region, client)
        return client


def publish_fields(topic: str, alert_id: str, body: bytes) -> dict[str, Any]:
    """The parameters of Publish."""
    alert = parse_body(body)
    message = {
        "default": body.decode(),
        "email": plain_words(alert),
        "sms": alert.shown("title", unlinked),
    }
    fields = {
        "TopicArn": topic,
        "Subject": _subject(alert.shown("title", unlinked)),
        "MessageStructure": "json",
        "Message": msgspec.json.encode(message).decode(),
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value}
            for name, value in _attributes(alert).items()
        },
    }
    if topic.endswith(".fifo"):
        fields |= {"MessageGroupId": "pricekeeper", "MessageDeduplicationId": alert_id}
    return fields


def _attributes(alert: AlertBody) -> dict[str, str]:
    """For filters of subscriptions; SNS accepts no empty value."""
    known = {"id": alert.id, "kind": alert.kind, "org_id": alert.org_id, "app_id": alert.app_id}
    return {name: value for name, value in known.items() if value}


def _subject(title: str) -> str:
    """Fewer than 100 ASCII characters, without control characters.

    A break that keeps a name from being a link becomes a space.
    """
    spaced = title.replace(BREAK, " ")
    plain = " ".join(spaced.encode("ascii", "replace").decode().split())
    return f"pricekeeper: {plain}"[:SUBJECT_LENGTH_MAX].rstrip()


def _region_of(topic: str) -> str:
    found = TOPIC.fullmatch(topic)
    if found is None:
        raise DeliveryError("its address is no topic: set the channel again", is_refused=True)
    return found["region"]
