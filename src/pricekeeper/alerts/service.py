"""Alerts: what people should know is found, decided once, and delivered.

`look` is what the aggregator calls for whatever it has counted, `checks` finds what no aggregation
tells, `courier` delivers. The history and the channels are for administrators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import Alert, Owner
from pricekeeper.alerts.body import trial_body
from pricekeeper.alerts.channel import ChannelKind
from pricekeeper.alerts.channels import Channels
from pricekeeper.alerts.checking import Checks, Sources
from pricekeeper.alerts.deciding import Decider, Observer
from pricekeeper.alerts.delivery import Courier, Send
from pricekeeper.alerts.history import AlertHistory
from pricekeeper.alerts.items import Receiver
from pricekeeper.alerts.mail import Mail
from pricekeeper.alerts.meter import AlertMeter
from pricekeeper.alerts.slack import send_to_slack
from pricekeeper.alerts.sns import Topics
from pricekeeper.alerts.watching import Watcher
from pricekeeper.alerts.webhook import HttpSender, send_to_webhook
from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution
from pricekeeper.clock import Clock
from pricekeeper.credentials import Sealer
from pricekeeper.errors import DeliveryError, NotFoundError
from pricekeeper.ledger import Ledger
from pricekeeper.metering import WindowSpend
from pricekeeper.metering.folding import Look
from pricekeeper.pricing import Catalogue
from pricekeeper.storage import Store
from pricekeeper.tenants import Policy, Tenants
from pricekeeper.values import OrgId, new_request_id


class Trial(NamedTuple):
    """What came of trying a channel; ``error`` is ``None`` if it took the test."""

    alert_id: str
    error: str | None


class Alerts:
    """Everything about alerts, for an instance that serves."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tenants: Tenants,
        *,
        sealer: Sealer,
        sources: Sources,
        ledger: Ledger,
        catalogue: Catalogue | None = None,
        trail: AuditTrail | None = None,
        guard: Guard | None = None,
        observe: Observer = lambda _: None,
    ) -> None:
        """``observe`` is told of each alert that is decided here."""
        self._clock = clock
        self._observe = observe
        self.meter = AlertMeter()
        self.channels = Channels(store, clock, tenants, trail=trail, sealer=sealer, guard=guard)
        self._http = HttpSender(self.channels.guard)
        self._mail = Mail(self.channels.guard, clock)
        self._destinations: Mapping[ChannelKind, Send] = {
            ChannelKind.WEBHOOK: partial(send_to_webhook, self._http, clock),
            ChannelKind.SLACK: partial(send_to_slack, self._http),
            ChannelKind.SNS: Topics(clock, self.channels.guard).send,
            ChannelKind.EMAIL: self._mail.send,
        }
        self.courier = Courier(store, clock, self.channels, self._destinations, meter=self.meter)
        decider = Decider(store, clock, self.channels, self.meter, self._note_decided)
        self._watcher = Watcher(store, tenants, decider, ledger, catalogue)
        self.checks = Checks(store, clock, tenants, decider, sources, self._watcher.active)
        self.history = AlertHistory(store)

    @property
    def look(self) -> Look:
        """What the aggregator is to call for whatever it has counted."""
        return self._watcher.look

    def note_asked(self, policy: Policy, *, is_denied: bool) -> None:
        """An app has asked for a call or for tokens."""
        # An app that is not registered can have any name: their organisation counts them as one.
        client = policy.client if policy.is_registered else policy.client.org
        self.checks.denials.note(client, int(is_denied), 1, self._clock.now_ms())

    def note_charged(self, org_id: str, cost_usd_picos: int, *, is_unsettled: bool) -> None:
        """An organisation is charged for a call that was captured, or that nobody has settled."""
        part = cost_usd_picos if is_unsettled else 0
        self.checks.unsettled.note(OrgId(org_id), part, cost_usd_picos, self._clock.now_ms())

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
        await self._mail.close()

    async def try_channel(self, owner: Owner, name: str, by: Attribution) -> Trial:
        """Send a test through a channel, at once and past the queue."""
        alert_id, now_ms = new_request_id(self._clock.now_ms()), self._clock.now_ms()
        try:
            channel = await self.channels.open(Receiver(owner, name))
            if channel is None:
                raise NotFoundError("channel")
            await self.channels.note_trial(owner, name, by)
            body = trial_body(alert_id, now_ms, name)
            await self._destinations[channel.channel.kind](channel, alert_id, body)
        except DeliveryError as error:
            return Trial(alert_id, str(error))
        return Trial(alert_id, None)

    def _note_decided(self, alert: Alert) -> None:
        self.courier.wake()
        self._observe(alert)


def make_look(store: Store, clock: Clock, catalogue: Catalogue | None = None) -> Look:
    """The same for an aggregator without a service: it decides, and instances deliver."""
    tenants = Tenants(store, clock, ())
    decider = Decider(store, clock, Channels(store, clock, tenants))
    ledger = Ledger(store, clock, WindowSpend(store, clock).read_spend)
    return Watcher(store, tenants, decider, ledger, catalogue).look
