"""Counts retrieval tokens and revocations, and knows the age of secrets, for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pricekeeper.telemetry import Family, counted
from pricekeeper.tenants import REVOCATIONS, Client, Policy

SECRETS_MAX: Final = 1_000
"""Clients whose secret's age is known: the first that logged in here."""

_RETRIEVALS: Final = Family(
    "pricekeeper_retrieval_tokens",
    "One-time tokens issued, claimed, and refused by cause.",
    ("event",),
)


class SecretAge(NamedTuple):
    """The claim of a client's present secret."""

    org_name: str
    app_name: str | None
    created_at_epoch: int


@dataclass(slots=True)
class CredentialsMeter:
    """The counts of one instance."""

    retrievals_issued: int = counted(_RETRIEVALS, "issued")
    retrievals_claimed: int = counted(_RETRIEVALS, "claimed")
    retrievals_refused: Counter[str] = counted(
        _RETRIEVALS, shown=("refused_unknown", "refused_used"), factory=Counter
    )
    """An expired token is unknown: the store drops it."""
    revoked: int = counted(REVOCATIONS, "credentials")
    rotated_out: int = counted(REVOCATIONS, "rotation")
    """Claims that ended all tokens of a client: no grace."""
    secret_ages: dict[Client, SecretAge] = field(default_factory=dict)

    def note_claim(self, client: Client, now_epoch: int, *, ended_tokens: bool) -> None:
        self.retrievals_claimed += 1
        self.rotated_out += ended_tokens
        known = self.secret_ages.get(client)
        if known is not None:
            self.secret_ages[client] = known._replace(created_at_epoch=now_epoch)

    def note_login(self, policy: Policy) -> None:
        created_at_epoch, ages = policy.client_secret_created_at_epoch, self.secret_ages
        if created_at_epoch is not None and (policy.client in ages or len(ages) < SECRETS_MAX):
            ages[policy.client] = SecretAge(policy.org_name, policy.app_name, created_at_epoch)
