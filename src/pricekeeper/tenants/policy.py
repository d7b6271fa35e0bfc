"""A client's policy: the settings in force, merged from its own and its organisation's.

- An app inherits each setting that it does not override.
- Under ORG scope all apps share the organisation's quotas.
- A label of an app's ordering without a quota of its own has the organisation's quota, else 0,
  never an unlimited one: the organisation may have changed later.
- Budgets are not inherited: an app's own and its organisation's both hold.
- An app that is not registered has its organisation's settings under ORG scope. Under APP scope it
  does not exist: each made-up name would bring new quotas.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from pricekeeper.authority import Reach
from pricekeeper.client_ids import Client
from pricekeeper.errors import FrozenError
from pricekeeper.tenants.configuration import (
    INHERITED,
    AppSettings,
    Budget,
    OrgSettings,
    QuotaScope,
    RateLimits,
)
from pricekeeper.values import AppId, OrgId

FreezeScope: TypeAlias = Literal["ORG", "APP"]


@dataclass(frozen=True, slots=True)
class Freeze:
    """An administrator denies models and tokens to an organisation or an app.

    Usage is counted, totals read, leases adjusted, and clients log in: all spend must become known.
    """

    scope: FreezeScope
    reason: str
    frozen_at_epoch: int
    reach: Reach = Reach.ALL
    """The reach of the key that set it; a key of less reach can't lift it."""

    def error(self) -> FrozenError:
        return FrozenError(self.scope, self.reason, self.frozen_at_epoch)


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a client, from creation to deletion, and its versions.

    A client that is created again has a new ``incarnation``: nothing of the old one counts. A new
    ``token_generation`` invalidates everything issued before. An imported client may lack all.
    """

    incarnation: str = ""
    version: int = 0
    created_at_epoch: int = 0
    updated_at_epoch: int = 0
    token_generation: str = ""
    tokens_valid_from_epoch_ms: int = 0


class Generation(NamedTuple):
    """A token generation to begin, and its start."""

    name: str
    since_epoch_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(OrgSettings):
    """The settings in force for a client.

    ``quotas`` are the organisation's under ORG scope; every label of the ordering has one.

    A token or session is valid only under its ``token_generation``, which no clock decides.
    ``tokens_valid_from_epoch_ms`` is when that last changed, for callers that know only a time of
    issue. It never goes back within a life.
    """

    client: Client
    app_name: str | None
    budgets: tuple[Budget, ...] = ()
    """The app's own; those for all apps are in ``org_budgets``."""
    org_budgets: tuple[Budget, ...] = ()
    org_rate_limits: RateLimits
    """The organisation's bucket is debited together with the app's."""
    inherited_fields: tuple[str, ...]
    created_at_epoch: int
    updated_at_epoch: int
    token_generation: str
    tokens_valid_from_epoch_ms: int
    incarnation: str
    org_incarnation: str
    client_secret_created_at_epoch: int | None = None
    is_registered: bool = True
    freeze: Freeze | None = None
    """The client's own freeze, else its organisation's."""
    org_id: OrgId = field(init=False, compare=False)
    app_id: AppId | None = field(init=False, compare=False)
    client_id: str = field(init=False, compare=False)
    scope_key: str = field(init=False, compare=False)
    """The account that spends: the start of keys of counters, totals and sticky state."""

    def __post_init__(self) -> None:
        derive = object.__setattr__
        org_id, app_id = self.client
        derive(self, "org_id", org_id)
        derive(self, "app_id", app_id)
        derive(self, "client_id", self.client.client_id)
        scope_key = f"ORG#{org_id}"
        if app_id is not None and self.quota_scope is not QuotaScope.ORG:
            scope_key += f"#APP#{app_id}"
        derive(self, "scope_key", scope_key)

    def __hash__(self) -> int:
        return hash(self.client)

    @property
    def bucket_entity(self) -> str:
        """The name of the client's buckets and leases.

        It contains the life: a client created again starts with full buckets, and older leases
        can't change them.
        """
        return _in_life(self.client_id, self.incarnation)

    @property
    def org_bucket_entity(self) -> str:
        return _in_life(self.client.org.client_id, self.org_incarnation)

    def require_unfrozen(self) -> None:
        if self.freeze is not None:
            raise self.freeze.error()


def _in_life(client_id: str, incarnation: str) -> str:
    return f"{client_id}@{incarnation}" if incarnation else client_id


def org_policy(client: Client, org: OrgSettings, life: Life) -> Policy:
    """Return the policy of the organisation itself."""
    return _policy(client, org, org, life, life)


def unregistered_policy(client: Client, org: OrgSettings, life: Life) -> Policy | None:
    """The policy of an app without an item; ``None`` if it does not exist."""
    if org.quota_scope is not QuotaScope.ORG:
        return None
    return _policy(client, org, org, life, life, inherited_fields=INHERITED, is_registered=False)


def app_policy(
    client: Client, org: OrgSettings, org_life: Life, app: AppSettings, app_life: Life
) -> Policy:
    """The policy of an app: its own settings before its organisation's."""
    own = {name: getattr(app, name) for name in INHERITED if getattr(app, name) is not None}
    if org.quota_scope is QuotaScope.ORG:
        own.pop("quotas", None)
    effective = replace(org, **own)
    covered = {label: org.quotas.get(label, 0) for label in effective.model_ordering}
    return _policy(
        client,
        org,
        effective,
        org_life,
        app_life,
        app_name=app.app_name,
        quotas={**covered, **effective.quotas},
        budgets=app.budgets or (),
        inherited_fields=tuple(name for name in INHERITED if name not in own),
    )


def _policy(
    client: Client,
    org: OrgSettings,
    effective: OrgSettings,
    org_life: Life,
    own_life: Life,
    **own: Any,
) -> Policy:
    settings = {one.name: getattr(effective, one.name) for one in fields(OrgSettings)}
    return Policy(
        **{**settings, "budgets": (), "app_name": None, "inherited_fields": (), **own},
        client=client,
        org_budgets=org.budgets,
        org_rate_limits=org.rate_limits,
        created_at_epoch=own_life.created_at_epoch,
        updated_at_epoch=max(org_life.updated_at_epoch, own_life.updated_at_epoch),
        token_generation=own_life.token_generation,
        tokens_valid_from_epoch_ms=own_life.tokens_valid_from_epoch_ms,
        incarnation=own_life.incarnation,
        org_incarnation=org_life.incarnation,
    )
