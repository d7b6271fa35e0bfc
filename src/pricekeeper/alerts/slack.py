"""Alerts to an incoming webhook of Slack, or of a chat that takes the same (Mattermost and others).

Slack's address is its own secret, and knows no signature and no idempotency key. So the text ends
with the alert's id: whoever sees an alert twice sees that it is the same one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.alerts.body import parse_body
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.webhook import HttpSender

_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


async def send_to_slack(http: HttpSender, channel: OpenChannel, alert_id: str, body: bytes) -> None:
    """Post an alert as a message of a chat."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": alert_id}
    message = msgspec.json.encode({"text": chat_text(body)})
    await http.post(channel.address.url, message, headers)


def chat_text(body: bytes) -> str:
    """An alert as a message: nothing in it is a link, a mention or a command."""
    alert = parse_body(body)
    title, text, next_step = (
        " ".join(part.translate(_ESCAPES).split()) for part in (alert.title, alert.text, alert.next)
    )
    return f"*{title}*\n{text}\n{next_step}\n`{alert.id}`"
