"""Keys of administrators, and what a credential may see."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import UNSET, Struct

from pricekeeper.admin_keys import AdminKey, IssuedKey, is_key_id, parse_key_name
from pricekeeper.authority import ALL_ORGS, NO_ORG, Attribution, Authority, Coverage, Role
from pricekeeper.bootstrap import Services
from pricekeeper.errors import InvalidValueError
from pricekeeper.tokens import Principal
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.describing import describe, moment
from pricekeeper.usecases.queries import without_secret
from pricekeeper.values import OrgId, parse_org_id
from pricekeeper.wire import administration as wire
from pricekeeper.wire.values import LAST_EPOCH, parse_timestamp

S = TypeVar("S", bound=Struct)


async def create_key(ask: Ask) -> wire.IssuedAdminKey:
    """Create a key; only this answer shows it."""
    body, by, services = ask.body, ask.by(), ask.services
    name = without_secret("name", parse_key_name(body.name))
    expires_at_epoch = None
    if body.expires_at is not None:
        expires_at_epoch = _future_epoch(body.expires_at, services.clock.now_ms())
    coverage = await _read_coverage(services, body.org_ids, by)
    role = Role(body.role)
    return _issued(await services.admin_keys.create(name, role, coverage, expires_at_epoch, by))


async def list_keys(ask: Ask) -> wire.AdminKeyList:
    """Read a page of the keys that cover no more than the caller."""
    after, limit = ask.page
    if after is not None and not is_key_id(after):
        raise InvalidValueError("after", "must be the id of a key")
    page = await ask.services.admin_keys.list_keys(ask.coverage, after, limit)
    keys = [_described(wire.AdminKeyAnswer, key) for key in page.entries]
    return wire.AdminKeyList(keys, page.after or UNSET)


async def rotate_key(ask: Ask) -> wire.IssuedAdminKey:
    """Give a key a new text; the old one works until the grace period ends."""
    key_id, hours = ask.path["key_id"], ask.body.grace_period_hours
    return _issued(await ask.services.admin_keys.rotate(key_id, hours, ask.by()))


async def read_me(ask: Ask) -> wire.Me:
    """Describe the credential of the request, and what it may see."""
    if ask.principal is not None:
        return _client_answer(ask.principal)
    if ask.authority is None:  # pragma: no cover - refused at the gate
        raise LookupError("this operation is opened without credentials")
    return _key_answer(ask.authority)


def _key_answer(authority: Authority) -> wire.Me:
    return describe(
        wire.Me,
        authority,
        kind=authority.kind.value,
        name=None if authority.key_id is None else authority.name,
        org_ids=_org_ids(authority.coverage),
    )


def _client_answer(principal: Principal) -> wire.Me:
    return describe(
        wire.Me,
        principal,
        kind="CLIENT",
        org_ids=[principal.org_id],
        scope=" ".join(sorted(principal.scopes)),
        expires_at=None,
    )


async def _read_coverage(
    services: Services, org_ids: list[str] | None, by: Attribution
) -> Coverage:
    """An organisation that the caller does not cover counts as absent."""
    if org_ids is None:
        return ALL_ORGS
    wanted = {parse_org_id(org_id, "org_ids"): None for org_id in org_ids}
    within = NO_ORG if by.authority is None else by.authority.coverage
    covered = [org_id for org_id in wanted if org_id in within]
    there = set(await services.tenants.list_org_ids(covered))
    missing = [org_id for org_id in wanted if org_id not in there]
    if missing:
        raise InvalidValueError("org_ids", f"there is no organisation {missing[0]}")
    return Coverage(frozenset(there))


def _future_epoch(text: str, now_ms: int) -> int:
    epoch = min(parse_timestamp(text, "expires_at") // 1000, LAST_EPOCH)
    if epoch <= now_ms // 1000:
        raise InvalidValueError("expires_at", "must be in the future")
    return epoch


def _issued(issued: IssuedKey) -> wire.IssuedAdminKey:
    return _described(wire.IssuedAdminKey, issued.key, key=issued.text.reveal())


def _described(kind: type[S], key: AdminKey, /, **stated: Any) -> S:
    ends_at = key.old_text_ends_at_epoch
    return describe(
        kind,
        key,
        org_ids=_org_ids(key.coverage),
        old_key_expires_at=None if ends_at is None else moment(ends_at),
        **stated,
    )


def _org_ids(coverage: Coverage) -> list[OrgId] | None:
    return None if coverage.org_ids is None else sorted(coverage.org_ids)
