"""The items of credentials: attributes of a client's Config item, and retrieval tokens.

At most two secrets are valid: ``client_secret_hash`` and, until the grace ends,
``client_secret_previous_hash``. The Config item names the one claimable retrieval token, so a newer
token, a revocation or a deletion invalidates all others. A token's key is its SHA-256: a reader of
the table can't claim.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from pricekeeper.credentials.secret import Secret
from pricekeeper.storage import (
    ITEM_EXISTS,
    Action,
    Check,
    Condition,
    Item,
    Key,
    Put,
    Remove,
    Set,
    TypedItem,
    Update,
    Write,
    attr,
    readable,
)
from pricekeeper.storage.tables import CONFIG, SECRET_RETRIEVAL_TOKENS
from pricekeeper.tenants import Client, Generation, config_key
from pricekeeper.tenants.items import SECRET_CREATED_AT, end_tokens_actions, time_moves_on
from pricekeeper.values import AppId, OrgId

RETRIEVAL_SECS: Final = 600

SECRET_HASH: Final = "client_secret_hash"  # noqa: S105 - names of attributes
PREVIOUS_HASH: Final = "client_secret_previous_hash"
GRACE_ENDS_AT: Final = "client_secret_rotation_grace_expires_at_epoch"
CLAIMABLE: Final = "secret_retrieval_key"

REVOKED: Final[tuple[Action, ...]] = tuple(
    Remove(name)
    for name in (SECRET_HASH, SECRET_CREATED_AT, PREVIOUS_HASH, GRACE_ENDS_AT, CLAIMABLE)
)
GRACE_ENDED: Final[tuple[Action, ...]] = (Remove(PREVIOUS_HASH), Remove(GRACE_ENDS_AT))


@dataclass(frozen=True, slots=True)
class Claimable:
    """The claim that an unused retrieval token allows."""

    key: str = field(repr=False)
    client: Client
    grace_period_hours: int
    replaces: str | None


def held(item: Item, now_epoch: int) -> dict[str, str | None]:
    """The valid hashes on a Config item, by attribute; an unreadable one is reported."""
    typed = TypedItem(CONFIG, item)
    ends_at_epoch = readable(lambda one: one.whole(GRACE_ENDS_AT, None), typed)
    in_grace = ends_at_epoch is not None and ends_at_epoch > now_epoch
    previous = readable(lambda one: one.text(PREVIOUS_HASH, None), typed) if in_grace else None
    current = readable(lambda one: one.text(SECRET_HASH, None), typed)
    return {SECRET_HASH: current, PREVIOUS_HASH: previous}


def retrieval_key(token: Secret) -> str:
    """The key of a retrieval token."""
    return hashlib.sha256(token.reveal().encode("utf-8", "replace")).hexdigest()


def retrieval_put(claimable: Claimable, now_epoch: int) -> Put:
    """Write an unused retrieval token."""
    client = claimable.client
    item: Item = {
        "PK": claimable.key,
        "org_id": client.org_id,
        "secret_type": "org" if client.app_id is None else "app",
        "client_id": client.client_id,
        "created_at_epoch": now_epoch,
        "expires_at_epoch": now_epoch + RETRIEVAL_SECS,
        "used": False,
        "grace_period_hours": claimable.grace_period_hours,
    }
    if client.app_id is not None:
        item["app_id"] = client.app_id
    if claimable.replaces is not None:
        item["replaces_hash"] = claimable.replaces
    return Put(SECRET_RETRIEVAL_TOKENS, item)


def claimable_of(item: Item) -> Claimable | None:
    """The claim of a token; ``None`` if it was used."""
    typed = TypedItem(SECRET_RETRIEVAL_TOKENS, item)
    if item.get("used") is not False:
        return None
    app_id = typed.text("app_id", None)
    client = Client(OrgId(typed.text("org_id")), None if app_id is None else AppId(app_id))
    grace_period_hours = typed.whole("grace_period_hours", 0, least=0)
    replaces = typed.text("replaces_hash", None)
    return Claimable(str(item["PK"]), client, grace_period_hours, replaces)


def claim_operations(
    claimable: Claimable, new_hash: str, now_epoch: int, generation: Generation
) -> tuple[Write, ...]:
    """Use the token and put the new secret in force, all or nothing.

    If no earlier secret stays valid, all tokens end too. The token's operation comes first, as
    `claim` expects.
    """
    use = Update(
        SECRET_RETRIEVAL_TOKENS,
        Key(claimable.key),
        (Set("used", value=True), Set("used_at_epoch", now_epoch)),
        attr("used").eq(value=False) & attr("expires_at_epoch").gt(now_epoch),
    )
    ends_at_epoch = grace_ends_at(claimable, now_epoch)
    condition = attr(CLAIMABLE).eq(claimable.key) & is_still(SECRET_HASH, claimable.replaces)
    actions: tuple[Action, ...] = (
        Set(SECRET_HASH, new_hash),
        Set(SECRET_CREATED_AT, now_epoch),
        Remove(CLAIMABLE),
    )
    if ends_at_epoch is None:
        actions += (*GRACE_ENDED, *end_tokens_actions(generation))
        condition &= time_moves_on(generation)
    else:
        actions += (Set(PREVIOUS_HASH, claimable.replaces), Set(GRACE_ENDS_AT, ends_at_epoch))
    replace = Update(CONFIG, config_key(claimable.client), actions, condition)
    return (use, replace, *org_checks(claimable.client))


def grace_ends_at(claimable: Claimable, now_epoch: int) -> int | None:
    """When the replaced secret ends; ``None`` if there is none, or no grace."""
    if claimable.replaces is None or claimable.grace_period_hours == 0:
        return None
    return now_epoch + claimable.grace_period_hours * 3600


def org_checks(client: Client) -> tuple[Check, ...]:
    """For an app, the condition that its organisation exists."""
    if client.app_id is None:
        return ()
    return (Check(CONFIG, config_key(client.org), ITEM_EXISTS),)


def is_still(name: str, value: str | None) -> Condition:
    """The condition that the attribute has this value; ``None`` means absent."""
    return attr(name).absent() if value is None else attr(name).eq(value)
