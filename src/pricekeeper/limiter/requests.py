"""The requests to a limiter: checked once here, and trusted from then on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypedDict, get_args

import msgspec

from pricekeeper.errors import InvalidValueError
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.items import check_key_part
from pricekeeper.limiter.limits import AMOUNT_MAX, Limit, LimitsSource, by_name

OnUnavailable: TypeAlias = Literal["deny", "allow"]
Limits: TypeAlias = LimitsSource | Sequence[Limit]
Kind: TypeAlias = tuple[object, ...]

PARENTS_MAX: Final = 8
PREFETCH_MAX: Final = 10_000
HOLD_MS_MAX: Final = 60_000


class AcquireOptions(TypedDict, total=False):
    """What an acquire may say beside whom and what it is about."""

    parents: Sequence[str]
    """Debited too, all or nothing; each only for the limits it has."""
    limits: Limits | None
    lease_id: uuid.UUID | str | None
    """Makes it repeatable: the same one again is the same grant, and the lease can be adjusted and
    released from any instance for a day."""
    on_unavailable: OnUnavailable | None
    prefetch: int | None


class Defaults(msgspec.Struct, frozen=True):
    """What applies where a request does not say otherwise."""

    limits: Limits
    on_unavailable: OnUnavailable
    prefetch: int

    def __post_init__(self) -> None:
        _check_policy(self.on_unavailable)
        check_count("prefetch", self.prefetch, PREFETCH_MAX)

    def limits_of(self, entity: str, resource: str, limits: Limits | None) -> dict[str, Limit]:
        """The limits of one bucket; ``limits`` of the request's own go first."""
        source = self.limits if limits is None else limits
        return by_name(source(entity, resource) if callable(source) else source)


class CheckedRequest(msgspec.Struct, frozen=True):
    """The arguments of an acquire, once they are checked."""

    entity: str
    resource: str
    parents: tuple[str, ...]
    tokens: dict[str, int]
    debits: tuple[Debit, ...]
    """One per bucket that has limits, with those of the tokens that it limits, maybe none."""
    nonempty_debits: tuple[Debit, ...]
    """The debits that take something, one at least."""
    kind: Kind
    """Which prefetched blocks can serve it."""
    lease_id: str | None
    on_unavailable: OnUnavailable
    prefetch: int


def check_request(
    defaults: Defaults,
    entity: str,
    resource: str,
    consume: Mapping[str, int],
    *,
    parents: Sequence[str] = (),
    limits: Limits | None = None,
    lease_id: uuid.UUID | str | None = None,
    on_unavailable: OnUnavailable | None = None,
    prefetch: int | None = None,
) -> CheckedRequest:
    """Check a request; raises `InvalidValueError`, which names the wrong field."""
    chain = (entity, *parents)
    tokens = dict(consume)
    _check_tokens(tokens)
    _check_chain(chain, resource)
    debits = []
    for one in chain:
        named = defaults.limits_of(one, resource, limits)
        if named:
            some = {name: count for name, count in tokens.items() if name in named}
            debits.append(Debit(one, resource, named, some))
    for name in tokens:
        if not any(name in debit.limits for debit in debits):
            raise InvalidValueError(f"consume.{name}", f"{resource} has no such limit")
    nonempty = tuple(debit for debit in debits if debit.tokens)
    ahead = defaults.prefetch
    if prefetch is not None:
        ahead = check_count("prefetch", prefetch, PREFETCH_MAX)
        if lease_id is not None and prefetch > 1:
            raise InvalidValueError("prefetch", "a lease with an id is not taken from a block")
    return CheckedRequest(
        entity=entity,
        resource=resource,
        parents=tuple(parents),
        tokens=tokens,
        debits=tuple(debits),
        nonempty_debits=nonempty,
        kind=kind_of(debits, tokens) if ahead > 1 else (),
        lease_id=None if lease_id is None else parse_id(lease_id, "lease_id"),
        on_unavailable=_check_policy(on_unavailable or defaults.on_unavailable),
        prefetch=ahead if lease_id is None else 1,
    )


def kind_of(debits: Sequence[Debit], tokens: Mapping[str, int]) -> Kind:
    """What all requests that one block can serve share: buckets, limits, names of tokens."""
    buckets = [
        (debit.entity, debit.resource, *debit.limits, *[one.terms for one in debit.limits.values()])
        for debit in debits
    ]
    return (*buckets, *sorted(tokens))


def parse_id(text: uuid.UUID | str, field: str) -> str:
    """The canonical form of a UUID."""
    if isinstance(text, uuid.UUID):
        return str(text)
    try:
        return str(uuid.UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise InvalidValueError(field, "must be a UUID") from None


def check_count(field: str, count: int, most: int) -> int:
    """The count itself, if it is a whole number from 1 to the most."""
    if type(count) is not int or not 1 <= count <= most:
        raise InvalidValueError(field, f"must be a whole number from 1 to {most}")
    return count


def _check_tokens(tokens: Mapping[str, int]) -> None:
    if not tokens:
        raise InvalidValueError("consume", "must name at least one limit")
    for name, count in tokens.items():
        if type(count) is not int or not 0 <= count <= AMOUNT_MAX:
            raise InvalidValueError(
                f"consume.{name}", f"must be a whole number from 0 to {AMOUNT_MAX}"
            )


def _check_chain(chain: Sequence[str], resource: str) -> None:
    check_key_part("resource", resource)
    for index, one in enumerate(chain):
        check_key_part(f"parents[{index - 1}]" if index else "entity", one)
    if len(chain) > 1 + PARENTS_MAX or len(set(chain)) < len(chain):
        raise InvalidValueError("parents", f"must be at most {PARENTS_MAX}, all different")


def _check_policy(policy: OnUnavailable) -> OnUnavailable:
    if policy not in get_args(OnUnavailable):
        raise InvalidValueError("on_unavailable", "must be 'deny' or 'allow'")
    return policy
