"""Somebody is told: what should be known is found, decided once, and delivered."""

from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import Kind, Owner, State
from pricekeeper.alerts.channel import Channel, ChannelKind, ChannelRequest
from pricekeeper.alerts.checking import Sources
from pricekeeper.alerts.items import Delivery, StoredAlert
from pricekeeper.alerts.service import Alerts, make_look

__all__ = [
    "Alerts",
    "Channel",
    "ChannelKind",
    "ChannelRequest",
    "Delivery",
    "Guard",
    "Kind",
    "Owner",
    "Sources",
    "State",
    "StoredAlert",
    "make_look",
]
