"""Changes to clients as the audit trail records them: the settings before and after."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pricekeeper.audit import Change, differences
from pricekeeper.client_ids import Client
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import Item
from pricekeeper.tenants.configuration import AppSettings, OrgSettings
from pricekeeper.tenants.policy import Freeze
from pricekeeper.tenants.stored_settings import settings_of, stated_body


def client_created(client: Client, settings: OrgSettings | AppSettings) -> Change:
    """A client is created."""
    return _change(client, f"{_kind(client)}.create", after=stated_body(settings))


def settings_replaced(client: Client, item: Item, settings: OrgSettings | AppSettings) -> Change:
    """A client's settings change: only those that differ are recorded."""
    after = stated_body(settings)
    before = _stated(client, item)
    if before is not None:
        before, after = differences(before, after)
    return _change(client, f"{_kind(client)}.update", before=before, after=after)


def client_deleted(client: Client, item: Item) -> Change:
    """A client is deleted, an organisation with all of its apps."""
    return _change(client, f"{_kind(client)}.delete", before=_stated(client, item))


def client_frozen(client: Client, before: Freeze | None, after: Freeze | None) -> Change:
    """A client is frozen, gets another reason, or is unfrozen."""
    action = "unfreeze" if after is None else "freeze"
    return _change(client, action, before=_frozen(before), after=_frozen(after))


def _change(
    client: Client,
    action: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> Change:
    return Change(action, client.client_id, client.org_id, before, after)


def _kind(client: Client) -> str:
    return "org" if client.app_id is None else "app"


def read_settings(client: Client, item: Item) -> OrgSettings | AppSettings | None:
    """Read a client's settings; ``None`` if they can't be read, which is reported."""
    with contextlib.suppress(UnreadableItemError):
        return settings_of(client, item)
    return None


def _stated(client: Client, item: Item) -> dict[str, Any] | None:
    settings = read_settings(client, item)
    return None if settings is None else stated_body(settings)


def _frozen(freeze: Freeze | None) -> dict[str, Any] | None:
    if freeze is None:
        return None
    return {"frozen_at_epoch": freeze.frozen_at_epoch, "frozen_because": freeze.reason}
