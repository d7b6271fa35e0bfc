"""Alerts to topics of Amazon SNS: Publish, over its query protocol.

Signed by us with the service's own credentials, found by botocore's chain, in the topic's region.
Subscribers get the alert as JSON; mails its words, telephones its title. The id is an attribute,
and of a FIFO topic the deduplication id: the same for every attempt.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import urlencode

import aiohttp
import msgspec

from pricekeeper.alerts.body import AlertBody, parse_body
from pricekeeper.alerts.channel import TOPIC
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.webhook import ATTEMPT_SECS
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import DeliveryError, StoreError
from pricekeeper.storage.dynamodb.credentials import AwsAccess, find_service
from pricekeeper.storage.dynamodb.signed_post import post_signed

SERVICE: Final = "sns"
VERSION: Final = "2010-03-31"
REGIONS_MAX: Final = 64
SUBJECT_LENGTH_MAX: Final = 99
_HEADERS: Final = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
_OK: Final = 200
_ERROR_CODE: Final = re.compile(rb"<Code>([A-Za-z.]{1,64})</Code>")
_REFUSED: Final = frozenset({"InvalidParameter", "InvalidParameterValue", "ParameterValueInvalid"})
"""What concerns one alert; all other errors concern the topic, or us."""
_OLD_KEYS: Final = frozenset({"ExpiredToken", "InvalidClientTokenId"})


class Topics:
    """Publishes alerts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._access: BoundedCache[str, AwsAccess] = BoundedCache(REGIONS_MAX)

    async def send(self, channel: OpenChannel, alert_id: str, body: bytes) -> None:
        """Send an alert; raises `DeliveryError` if it was not accepted."""
        content = urlencode(publish_fields(channel.address.url, alert_id, body)).encode()
        try:
            async with asyncio.timeout(ATTEMPT_SECS):
                await self._publish(_region_of(channel.address.url), content)
        except TimeoutError as error:
            raise DeliveryError(f"did not answer within {ATTEMPT_SECS} s") from error
        except StoreError as error:
            raise DeliveryError(f"there are no credentials for SNS: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise DeliveryError(f"the request failed: {type(error).__name__}") from error

    async def _publish(self, region: str, content: bytes) -> None:
        access = self._access.get(region)
        if access is None:
            access = await find_service(SERVICE, region, self._clock)
            self._access.put(region, access)
        keys = access.credentials.current() or await access.credentials.renew()
        now_epoch = self._clock.now_ms() // 1000
        status, reply = await post_signed(
            access, keys, SERVICE, content, headers=_HEADERS, now_epoch=now_epoch
        )
        if status == _OK:
            return
        found = _ERROR_CODE.search(reply)
        code = found[1].decode() if found else f"HTTP {status}"
        if code in _OLD_KEYS:
            access.credentials.discard(keys)
        raise DeliveryError(f"SNS answered {code}", is_refused=code in _REFUSED)


def publish_fields(topic: str, alert_id: str, body: bytes) -> dict[str, str]:
    """What Publish is asked for."""
    alert = parse_body(body)
    words = f"{alert.text}\n\n{alert.next}\n\n{alert.id}"
    message = {"default": body.decode(), "email": words, "sms": alert.title}
    fields = {
        "Action": "Publish",
        "Version": VERSION,
        "TopicArn": topic,
        "Subject": _subject(alert.title),
        "MessageStructure": "json",
        "Message": msgspec.json.encode(message).decode(),
    }
    for number, (name, value) in enumerate(_attributes(alert).items(), 1):
        entry = f"MessageAttributes.entry.{number}"
        fields |= {
            f"{entry}.Name": name,
            f"{entry}.Value.DataType": "String",
            f"{entry}.Value.StringValue": value,
        }
    if topic.endswith(".fifo"):
        fields |= {"MessageGroupId": "pricekeeper", "MessageDeduplicationId": alert_id}
    return fields


def _attributes(alert: AlertBody) -> dict[str, str]:
    """What subscriptions may filter by; SNS takes no empty value."""
    known = {"id": alert.id, "kind": alert.kind, "org_id": alert.org_id, "app_id": alert.app_id}
    return {name: value for name, value in known.items() if value}


def _subject(title: str) -> str:
    """What SNS takes for one: ASCII without control characters, less than 100 of it."""
    plain = " ".join(title.encode("ascii", "replace").decode().split())
    return f"pricekeeper: {plain}"[:SUBJECT_LENGTH_MAX].rstrip()


def _region_of(topic: str) -> str:
    found = TOPIC.fullmatch(topic)
    if found is None:
        raise DeliveryError("its address is no topic; set the channel anew", is_refused=True)
    return found["region"]
