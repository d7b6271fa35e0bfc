"""The requests to a limiter: checked once here, and trusted from then on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypedDict

import msgspec

from pricekeeper.errors import InvalidValueError
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.items import check_key_part
from pricekeeper.limiter.limits import AMOUNT_MAX, Limit, LimitsSource, by_name, check_whole
from pricekeeper.storage import Key

Limits: TypeAlias = LimitsSource | Sequence[Limit]

PARENTS_MAX: Final = 8
AHEAD_MAX: Final = 10_000
HOLD_MS_MAX: Final = 60_000


class AcquireOptions(TypedDict, total=False):
    """What an acquire may say beside the bucket and the tokens."""

    parents: Sequence[str]
    """Debited too, all or nothing; each only for the limits it has."""
    limits: Limits | None
    lease_id: uuid.UUID | str | None
    """Makes it repeatable: the same one again is the same grant. With ``None``, the lease is
    released if the caller is cancelled before it gets the answer."""


class CheckedRequest(msgspec.Struct, frozen=True):
    """The arguments of an acquire, once they are checked."""

    entity: str
    resource: str
    parents: tuple[str, ...]
    tokens: dict[str, int]
    debits: tuple[Debit, ...]
    """One for each bucket that has limits, with the tokens that it limits, maybe none."""
    lease_id: str
    is_named: bool

    @property
    def nonempty_debits(self) -> tuple[Debit, ...]:
        """The debits that take something, one at least."""
        return tuple(debit for debit in self.debits if debit.tokens)

    @property
    def identity(self) -> object:
        tokens = tuple(sorted(self.tokens.items()))
        return self.entity, self.lease_id, self.resource, self.parents, tokens


def check_request(
    default: Limits,
    entity: str,
    resource: str,
    consume: Mapping[str, int],
    *,
    parents: Sequence[str] = (),
    limits: Limits | None = None,
    lease_id: uuid.UUID | str | None = None,
) -> CheckedRequest:
    """Check a request; raises `InvalidValueError`, which names the wrong field."""
    chain = (entity, *parents)
    tokens = dict(consume)
    _check_tokens(tokens)
    _check_chain(chain, resource)
    debits = []
    for one in chain:
        named = limits_of(default if limits is None else limits, one, resource)
        if named:
            some = {name: count for name, count in tokens.items() if name in named}
            debits.append(Debit(Key(one, resource), named, some))
    for name in tokens:
        if not any(name in debit.limits for debit in debits):
            raise InvalidValueError(f"consume.{name}", f"{resource} has no such limit")
    return CheckedRequest(
        entity=entity,
        resource=resource,
        parents=tuple(parents),
        tokens=tokens,
        debits=tuple(debits),
        lease_id=parse_id(uuid.uuid4() if lease_id is None else lease_id, "lease_id"),
        is_named=lease_id is not None,
    )


def limits_of(source: Limits, entity: str, resource: str) -> dict[str, Limit]:
    """The limits of one bucket."""
    return by_name(source(entity, resource) if callable(source) else source)


def parse_id(text: uuid.UUID | str, field: str) -> str:
    """The canonical form of a UUID."""
    if isinstance(text, uuid.UUID):
        return str(text)
    try:
        return str(uuid.UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise InvalidValueError(field, "must be a UUID") from None


def _check_tokens(tokens: Mapping[str, int]) -> None:
    if not tokens:
        raise InvalidValueError("consume", "must name at least one limit")
    for name, count in tokens.items():
        check_whole(f"consume.{name}", count, 0, AMOUNT_MAX)


def _check_chain(chain: Sequence[str], resource: str) -> None:
    check_key_part("resource", resource)
    for index, one in enumerate(chain):
        check_key_part(f"parents[{index - 1}]" if index else "entity", one)
    if len(chain) > 1 + PARENTS_MAX or len(set(chain)) < len(chain):
        raise InvalidValueError("parents", f"must be at most {PARENTS_MAX}, all different")
