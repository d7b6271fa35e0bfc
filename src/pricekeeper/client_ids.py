"""A client: an organisation or one of its apps, and its ``client_id``."""

from __future__ import annotations

from typing import Final, NamedTuple

from pricekeeper.errors import InvalidValueError
from pricekeeper.values import AppId, OrgId, parse_app_id, parse_org_id

_ORG: Final = "org-"
_APP: Final = "-app-"
_ORG_ENDS: Final = len(_ORG) + 36


class Client(NamedTuple):
    """An organisation, or one of its apps."""

    org_id: OrgId
    app_id: AppId | None = None

    @property
    def client_id(self) -> str:
        if self.app_id is None:
            return f"{_ORG}{self.org_id}"
        return f"{_ORG}{self.org_id}{_APP}{self.app_id}"

    @property
    def org(self) -> Client:
        return self if self.app_id is None else Client(self.org_id)


def parse_client_id(text: str, field: str = "client_id") -> Client:
    """Parse a ``client_id``; only the exact spelling is accepted."""
    try:
        client = Client(parse_org_id(text[len(_ORG) : _ORG_ENDS]))
        if len(text) > _ORG_ENDS:
            client = Client(client.org_id, parse_app_id(text[_ORG_ENDS + len(_APP) :]))
    except InvalidValueError:
        client = None
    if client is None or client.client_id != text:
        raise InvalidValueError(field, "must be org-{org_id} or org-{org_id}-app-{app_id}")
    return client
