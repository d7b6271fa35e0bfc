"""A request for an operation, as use cases see it.

It comes over HTTP (`http.operation.Call`) or from the operator's command line (`cli.local`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pricekeeper.authority import NO_ORG, Attribution, Authority, Coverage, only
from pricekeeper.bootstrap import Services
from pricekeeper.errors import NotFoundError, PriceKeeperError
from pricekeeper.tenants import Client, Policy
from pricekeeper.tokens import Principal
from pricekeeper.usecases.queries import parse_limit
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import AppId, OrgId, parse_reason
from pricekeeper.wire.bounds import PAGE_MAX


class WrongAudienceError(PriceKeeperError):
    """The credentials are valid, but not for this. ``by_key``: they were a key."""

    code = "FORBIDDEN"

    def __init__(self, detail: str = "", *, by_key: bool = False) -> None:
        super().__init__(detail)
        self.by_key = by_key


class Ask:
    """One request for an operation."""

    __slots__ = ()
    services: Services
    path: Mapping[str, str]
    body: Any
    authority: Authority | None
    """What the caller's key allows; ``None`` without a key."""
    principal: Principal | None
    """The owner of the caller's access token; ``None`` without a token."""

    @property
    @abstractmethod
    def query(self) -> Mapping[str, str]:
        """The query string by name."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The policy of the client in the path, read before the use case runs."""

    @property
    @abstractmethod
    def caller(self) -> Client:
        """The client that asks about itself."""

    @abstractmethod
    def by(self, reason: str | None = None) -> Attribution:
        """The caller, its address and the reason."""

    @property
    @abstractmethod
    def expected_tag(self) -> str | None:
        """The header ``If-Match``."""

    @property
    def by_admin(self) -> Attribution | None:
        """The administrator that asks; ``None`` if a client asks about itself."""
        return None if self.authority is None else self.by()

    @property
    def by_query(self) -> Attribution:
        reason = self.query.get("reason")
        return self.by(None if reason is None else parse_reason(reason))

    @property
    def by_reason(self) -> Attribution:
        """With the reason in the body or the query."""
        return self.by(self.query.get("reason") if self.body is None else self.body.reason)

    @property
    def org_id(self) -> OrgId:
        return OrgId(self.path["org_id"])

    @property
    def app_id(self) -> AppId:
        return AppId(self.path["app_id"])

    @property
    def client(self) -> Client:
        """The client in the path: the app or, without one, the organisation."""
        return Client(self.org_id, self.app_id if "app_id" in self.path else None)

    @property
    def coverage(self) -> Coverage:
        if self.authority is not None:
            return self.authority.coverage
        return NO_ORG if self.principal is None else only(self.principal.org_id)

    @property
    def viewer(self) -> Viewer:
        """Whose data the caller may see: its own, or all that its key covers."""
        return Viewer(self.coverage, None if self.principal is None else self.principal.app_id)

    @property
    def page(self) -> tuple[str | None, int]:
        limit = parse_limit(self.query.get("limit", str(PAGE_MAX)), PAGE_MAX)
        return self.query.get("after"), limit

    @property
    def channel_owner(self) -> OrgId | None:
        """The organisation in the path; ``None``: the deployment, which takes a key for all."""
        if "org_id" in self.path:
            return self.org_id
        if not self.coverage.is_all:
            raise WrongAudienceError("this takes a key for all organisations", by_key=True)
        return None

    def require_org_reader(self) -> None:
        if self.principal is not None and self.principal.app_id is not None:
            raise WrongAudienceError("an app's token can't read its organisation's data")

    async def read_org_policy(self, app_id: AppId | None) -> Policy:
        """An app may read only its own organisation's policy."""
        principal = self.principal
        if principal is not None:
            if principal.org_id != self.org_id:
                raise NotFoundError("org")
            if principal.app_id is not None and app_id is None:
                raise WrongAudienceError("an app's token reads its own data only: send app_id")
            if principal.app_id not in (None, app_id):
                raise NotFoundError("app")
        return await self.services.tenants.find_policy(self.org_id)
