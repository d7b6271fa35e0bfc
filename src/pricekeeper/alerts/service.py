"""Alerts of a serving instance: finds, decides, delivers and lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from pricekeeper.alerts import items
from pricekeeper.alerts.addresses import Guard
from pricekeeper.alerts.alert import Alert, AlertKind, DeliveryState, Owner, trial_body
from pricekeeper.alerts.channel import ChannelKind
from pricekeeper.alerts.channels import Channels
from pricekeeper.alerts.checking import Checks, Sources
from pricekeeper.alerts.deciding import Decider, Observer
from pricekeeper.alerts.delivery import Courier, Send
from pricekeeper.alerts.items import Receiver, StoredAlert
from pricekeeper.alerts.mail import Mail
from pricekeeper.alerts.meter import AlertMeter
from pricekeeper.alerts.sns import Topics
from pricekeeper.alerts.watching import Watcher
from pricekeeper.alerts.webhook import HttpSender, send_to_chat, send_to_webhook
from pricekeeper.audit import AuditTrail
from pricekeeper.authority import ALL_ORGS, Attribution, Coverage
from pricekeeper.clock import Clock
from pricekeeper.credentials import Sealer
from pricekeeper.errors import DeliveryError, NotFoundError
from pricekeeper.ledger import Ledger
from pricekeeper.metering import WindowSpend
from pricekeeper.metering.folding import Look
from pricekeeper.pricing import Catalogue
from pricekeeper.storage import Item, ListPage, Query, Store, readable
from pricekeeper.storage.tables import ALERTS
from pricekeeper.tenants import Policy, Tenants
from pricekeeper.values import OrgId, new_request_id

PAGE_MAX: Final = 100
LOOKED_AT_MAX: Final = 500


class AlertHistory:
    """Lists alerts, newest first.

    A page looks at `LOOKED_AT_MAX` alerts at most, so it may be short or empty with a next one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_page(
        self,
        owner: Owner | None,
        coverage: Coverage = ALL_ORGS,
        *,
        kind: AlertKind | None = None,
        state: DeliveryState | None = None,
        after: str = "",
    ) -> ListPage[StoredAlert, str]:
        """Filter by owners, kind and state.

        A caller that does not cover all organisations sees no deliveries to the deployment's
        channels.
        """
        is_narrow = kind is not None or state is not None or not coverage.is_all
        limit = LOOKED_AT_MAX if is_narrow else PAGE_MAX
        partition = items.LIST if owner is None else owner.key
        page = await self._store.query(
            Query(ALERTS, partition, after=after, limit=limit, descending=True)
        )
        if owner is not None:
            found: Iterable[Item | None] = page.items
        else:
            listed = [(item, items.listed_owner(item)) for item in page.items]
            keys = [
                (ALERTS, items.alert_key(one, str(item["SK"])))
                for item, one in listed
                if coverage.is_all or (one.org_id is not None and one.org_id in coverage)
            ]
            found = await self._store.batch_get(keys)
        read = [readable(items.alert_from, item) for item in found]
        seen = [
            one if coverage.is_all else one.for_its_organisation()
            for one in read
            if one is not None and kind in (None, one.kind)
        ]
        alerts = [one for one in seen if state in (None, one.state)]
        if len(alerts) <= PAGE_MAX:
            return ListPage(alerts, page.after or None)
        return ListPage(alerts[:PAGE_MAX], alerts[PAGE_MAX - 1].id)


class Trial(NamedTuple):
    """The result of a test; ``error`` is ``None`` if the channel accepted it."""

    alert_id: str
    error: str | None


class Alerts:
    """The alerts of one instance."""

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
        """``observe`` is called with each alert that is decided here."""
        self._clock = clock
        self._observe = observe
        self.meter = AlertMeter()
        self.channels = Channels(store, clock, tenants, trail=trail, sealer=sealer, guard=guard)
        self._http = HttpSender(self.channels.guard)
        self._mail = Mail(self.channels.guard, clock)
        self._destinations: Mapping[ChannelKind, Send] = {
            ChannelKind.WEBHOOK: partial(send_to_webhook, self._http, clock),
            ChannelKind.SLACK: partial(send_to_chat, self._http),
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
        """Called by the aggregator."""
        return self._watcher.look

    def note_asked(self, policy: Policy, *, is_denied: bool) -> None:
        # Unregistered apps can have any name, so their organisation counts them as one.
        client = policy.client if policy.is_registered else policy.client.org
        self.checks.denials.note(client, int(is_denied), 1, self._clock.now_ms())

    def note_charged(self, org_id: str, cost_usd_picos: int, *, is_unsettled: bool) -> None:
        part = cost_usd_picos if is_unsettled else 0
        self.checks.unsettled.note(OrgId(org_id), part, cost_usd_picos, self._clock.now_ms())

    async def close(self) -> None:
        await self._http.close()
        await self._mail.close()

    async def try_channel(self, owner: Owner, name: str, by: Attribution) -> Trial:
        """Send a test through a channel now, past its queue."""
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
    """`Alerts.look` for an aggregator without a service: it decides, and instances deliver."""
    tenants = Tenants(store, clock, ())
    decider = Decider(store, clock, Channels(store, clock, tenants))
    ledger = Ledger(store, clock, WindowSpend(store, clock).read_spend)
    return Watcher(store, tenants, decider, ledger, catalogue).look
