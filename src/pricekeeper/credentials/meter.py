"""What became of retrieval tokens, and how old secrets are, for the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pricekeeper.telemetry import Family, counted
from pricekeeper.tenants import REVOCATIONS, Client, Policy

SECRETS_MAX: Final = 1_000
"""Clients whose secret's age is known: the first ones that this instance has seen."""

_RETRIEVALS: Final = Family(
    "pricekeeper_retrieval_tokens", "One-time tokens issued, claimed, refused.", ("event",)
)


class SecretAge(NamedTuple):
    """When the present secret of a client was claimed, and what people call the client."""

    org_name: str
    app_name: str | None
    created_at_epoch: int


@dataclass(slots=True)
class CredentialsMeter:
    """What one instance has handed out and recognised."""

    retrievals_issued: int = counted(_RETRIEVALS, "issued")
    """Retrieval tokens given to somebody: for a new client or a rotation."""
    retrievals_claimed: int = counted(_RETRIEVALS, "claimed")
    """Retrieval tokens turned into a secret."""
    retrievals_refused: int = counted(_RETRIEVALS, "refused")
    """Claims with a token that is mistyped, unknown, used, replaced or expired."""
    revoked: int = counted(REVOCATIONS, "credentials")
    """Times that an administrator revoked a client's secrets, and its tokens with them."""
    rotated_out: int = counted(REVOCATIONS, "rotation")
    """Claims that ended every token of a client, because the old secret had no grace."""
    secret_ages: dict[Client, SecretAge] = field(default_factory=dict)
    """Of the clients that have logged in here."""

    def note_claim(self, client: Client, now_epoch: int, *, ended_tokens: bool) -> None:
        """Note a retrieval token that was turned into a secret just now."""
        self.retrievals_claimed += 1
        self.rotated_out += ended_tokens
        known = self.secret_ages.get(client)
        if known is not None:
            self.secret_ages[client] = known._replace(created_at_epoch=now_epoch)

    def note_login(self, policy: Policy) -> None:
        """Note how old the secret of a client that logs in is, if that is known."""
        created_at_epoch, ages = policy.client_secret_created_at_epoch, self.secret_ages
        if created_at_epoch is not None and (policy.client in ages or len(ages) < SECRETS_MAX):
            ages[policy.client] = SecretAge(policy.org_name, policy.app_name, created_at_epoch)
