"""Alerts to an incoming webhook of Slack, or of a chat that takes the same (Mattermost and others).

Slack's address is its own secret, and knows no signature and no idempotency key. So the text ends
with the alert's id: whoever sees an alert twice sees that it is the same one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.alerts.body import parse_body
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.alerts.parts import unlinked
from pricekeeper.alerts.webhook import HttpSender

_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LOOKALIKES: Final = str.maketrans({"&": "\uff06", "<": "\u2039", ">": "\u203a", "`": "\u02cb"})
"""For code, in which Slack wants escapes and Mattermost shows them."""


async def send_to_slack(http: HttpSender, channel: OpenChannel, alert_id: str, body: bytes) -> None:
    """Post an alert as a message of a chat."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": alert_id}
    message = msgspec.json.encode({"text": chat_text(body)})
    await http.post(channel.address.url, message, headers)


def chat_text(body: bytes) -> str:
    """An alert as a message. Foreign parts are code: no link, mention or format in any chat."""
    alert = parse_body(body)
    title, text, next_step = (
        alert.shown(name, _as_code, lambda ours: ours.translate(_ESCAPES))
        for name in ("title", "text", "next")
    )
    return f"*{title}*\n{text}\n{next_step}\n`{alert.id}`"


def _as_code(text: str) -> str:
    return f"`{unlinked(text.translate(_LOOKALIKES))}`" if text else ""
