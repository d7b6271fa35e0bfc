"""Alerts: what people should know is found, decided once, and delivered."""

from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import AlertKind, DeliveryState, Owner
from pricekeeper.alerts.channel import Channel, ChannelKind, ChannelRequest
from pricekeeper.alerts.checking import Sources
from pricekeeper.alerts.items import Delivery, StoredAlert
from pricekeeper.alerts.service import Alerts, make_look

__all__ = [
    "AlertKind",
    "Alerts",
    "Channel",
    "ChannelKind",
    "ChannelRequest",
    "Delivery",
    "DeliveryState",
    "Guard",
    "Owner",
    "Sources",
    "StoredAlert",
    "make_look",
]
