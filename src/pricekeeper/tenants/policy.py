"""A client's policy: the settings in force, merged from its own and its organisation's.

Inheritance is by field: what an app does not override is its organisation's. Quotas have
two more rules. Under ORG scope all apps spend from the organisation's quotas, so an app's
own do not count. And since an organisation may change after its apps were checked against
it, a label of an app's ordering that its own quotas do not name has the organisation's
quota, and if there is none either, a quota of zero: never an unlimited one.

Budgets are not inherited: an app's own and its organisation's are two lists, and both hold. An
organisation's own client has only the organisation's, and so has an app that nobody registered.

An app that nobody has registered has its organisation's settings, all of them, as long as it
spends from the organisation's quotas. Under APP scope it would bring quotas of its own, a new set
with each name that somebody makes up, so there it does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from pricekeeper.client_ids import Client
from pricekeeper.tenants.budget import Budget
from pricekeeper.tenants.configuration import (
    INHERITED,
    AppSettings,
    OrgSettings,
    QuotaScope,
    RateLimits,
)
from pricekeeper.tenants.freeze import Freeze
from pricekeeper.values import AppId, OrgId


@dataclass(frozen=True, slots=True)
class Life:
    """One existence of a client, from its creation to its deletion, and its versions.

    A client that is deleted and created again has a new ``incarnation``: nothing of the
    old one counts for it. ``token_generation`` changes whenever everything that was issued
    so far has to stop working. An imported client may have nothing of this.
    """

    incarnation: str = ""
    version: int = 0
    created_at_epoch: int = 0
    updated_at_epoch: int = 0
    token_generation: str = ""
    tokens_valid_from_epoch_ms: int = 0


class Generation(NamedTuple):
    """A token generation that is to begin, and the moment from which it counts."""

    name: str
    since_epoch_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(OrgSettings):
    """What holds for a client: an organisation's settings, or an app's merged with them.

    ``quotas`` are those in force: the organisation's under ORG scope. Every label of the ordering
    has one.

    A token or session counts only under the ``token_generation`` it was issued under. That
    is exact whatever the clocks do; ``tokens_valid_from_epoch_ms`` is the moment of the
    last change of it, for those who have nothing but a time of issue, and never goes back
    within a client's life.
    """

    client: Client
    app_name: str | None
    budgets: tuple[Budget, ...] = ()
    """The app's own; what counts for all apps of the organisation is in ``org_budgets``."""
    org_budgets: tuple[Budget, ...] = ()
    org_rate_limits: RateLimits
    """The organisation's own limits; its bucket is debited together with the app's."""
    inherited_fields: tuple[str, ...]
    """What an app has from its organisation; empty for the organisation itself."""
    created_at_epoch: int
    updated_at_epoch: int
    token_generation: str
    tokens_valid_from_epoch_ms: int
    incarnation: str
    """The name of the client's life; another one if it is deleted and created again."""
    org_incarnation: str
    client_secret_created_at_epoch: int | None = None
    """When its present secret was claimed; ``None`` if it has none, or if nobody knows."""
    is_registered: bool = True
    """Whether it has an item of its own; an app without one has its organisation's settings."""
    freeze: Freeze | None = None
    """The client's own freeze, else its organisation's; ``None`` if neither is frozen."""
    client_id: str = field(init=False, compare=False)
    scope_key: str = field(init=False, compare=False)
    """Whose spend counts: the start of the keys of counters, totals and sticky state."""

    def __post_init__(self) -> None:
        derive = object.__setattr__
        derive(self, "client_id", self.client.client_id)
        scope_key = f"ORG#{self.client.org_id}"
        if self.client.app_id is not None and self.quota_scope is not QuotaScope.ORG:
            scope_key += f"#APP#{self.client.app_id}"
        derive(self, "scope_key", scope_key)

    def __hash__(self) -> int:
        """Mappings can't be hashed; two policies of one client are rare, so it is enough."""
        return hash(self.client)

    @property
    def org_id(self) -> OrgId:
        return self.client.org_id

    @property
    def app_id(self) -> AppId | None:
        return self.client.app_id

    @property
    def bucket_entity(self) -> str:
        """Under which name the limiter keeps the client's buckets and leases.

        It names the life, so that they end with it: a client that is created again starts with
        full buckets, and no lease from before can touch them.
        """
        return _in_life(self.client_id, self.incarnation)

    @property
    def org_bucket_entity(self) -> str:
        """The same for the organisation that the client is, or belongs to."""
        return _in_life(self.client.org.client_id, self.org_incarnation)

    def require_unfrozen(self) -> None:
        """Raise `FrozenError` if an administrator has frozen the client or its organisation."""
        if self.freeze is not None:
            raise self.freeze.error()


def _in_life(client_id: str, incarnation: str) -> str:
    """The client in that life; an imported one has no name for its life."""
    return f"{client_id}@{incarnation}" if incarnation else client_id


def org_policy(client: Client, org: OrgSettings, life: Life) -> Policy:
    """What holds for the organisation itself."""
    return _policy(client, org, org, org_life=life, own_life=life)


def unregistered_policy(client: Client, org: OrgSettings, life: Life) -> Policy | None:
    """What holds for an app that nobody has registered; ``None`` if it does not exist."""
    if org.quota_scope is not QuotaScope.ORG:
        return None
    inherited = _policy(client, org, org, org_life=life, own_life=life)
    return replace(inherited, inherited_fields=INHERITED, is_registered=False)


def app_policy(
    client: Client, org: OrgSettings, org_life: Life, app: AppSettings, app_life: Life
) -> Policy:
    """What holds for the app: its own settings before its organisation's."""
    own = {name: getattr(app, name) for name in INHERITED if getattr(app, name) is not None}
    if org.quota_scope is QuotaScope.ORG:
        own.pop("quotas", None)
    effective = replace(org, **own)
    covered = {label: org.quotas.get(label, 0) for label in effective.model_ordering}
    effective = replace(effective, quotas={**covered, **effective.quotas})
    return replace(
        _policy(client, org, effective, org_life=org_life, own_life=app_life),
        app_name=app.app_name,
        budgets=app.budgets or (),
        inherited_fields=tuple(name for name in INHERITED if name not in own),
    )


def _policy(
    client: Client, org: OrgSettings, effective: OrgSettings, *, org_life: Life, own_life: Life
) -> Policy:
    settings: dict[str, Any] = {
        one.name: getattr(effective, one.name) for one in fields(OrgSettings)
    }
    return Policy(
        **{**settings, "budgets": ()},
        client=client,
        app_name=None,
        org_budgets=org.budgets,
        org_rate_limits=org.rate_limits,
        inherited_fields=(),
        created_at_epoch=own_life.created_at_epoch,
        updated_at_epoch=max(org_life.updated_at_epoch, own_life.updated_at_epoch),
        token_generation=own_life.token_generation,
        tokens_valid_from_epoch_ms=own_life.tokens_valid_from_epoch_ms,
        incarnation=own_life.incarnation,
        org_incarnation=org_life.incarnation,
    )
