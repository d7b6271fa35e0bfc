"""The principal that a valid token speaks for, and what it may do.

An organisation may use its apps and read across them; an app is confined to itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId

ORG_READ: Final = "org:read"
APP_USE: Final = "app:use"
SCOPES: Final = (APP_USE, ORG_READ)


def scopes_of(client: Client) -> tuple[str, ...]:
    """What a client's tokens allow."""
    return SCOPES if client.app_id is None else (APP_USE,)


class Principal(msgspec.Struct, frozen=True):
    """The client that a valid access token belongs to."""

    org_id: OrgId
    app_id: AppId | None
    client_id: str
    scopes: frozenset[str]
    session_id: str
    token_id: str
    issued_at_epoch: int
    expires_at_epoch: int

    @property
    def client(self) -> Client:
        """The organisation or app itself."""
        return Client(self.org_id, self.app_id)

    def may_use_app(self, org_id: OrgId, app_id: AppId) -> bool:
        """Whether it may act for that app: as the app itself, or as its organisation."""
        return (
            APP_USE in self.scopes
            and org_id == self.org_id
            and (self.app_id is None or self.app_id == app_id)
        )

    def may_read_org(self, org_id: OrgId) -> bool:
        """Whether it may see what concerns the whole organisation."""
        return ORG_READ in self.scopes and org_id == self.org_id and self.app_id is None
