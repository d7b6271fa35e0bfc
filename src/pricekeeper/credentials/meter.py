"""What became of retrieval tokens, and how old secrets are, for the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pricekeeper.telemetry import Family, counted
from pricekeeper.tenants import REVOCATIONS, Client

SECRETS_MAX: Final = 1_000
"""Clients whose secret's age is known: the first ones that this instance has seen."""

_RETRIEVALS: Final = Family(
    "pricekeeper_retrieval_tokens", "One-time tokens issued, claimed, refused.", ("event",)
)


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
    secrets_created_at_epoch: dict[Client, int] = field(default_factory=dict)
    """When the present secret of a client was claimed, by client."""

    def note_claim(self, client: Client, now_epoch: int, *, ended_tokens: bool) -> None:
        """Note a retrieval token that was turned into a secret just now."""
        self.retrievals_claimed += 1
        self.rotated_out += ended_tokens
        self.note_secret(client, now_epoch)

    def note_secret(self, client: Client, created_at_epoch: int | None) -> None:
        """Note how old a client's secret is, if that is known."""
        known = self.secrets_created_at_epoch
        if created_at_epoch is not None and (client in known or len(known) < SECRETS_MAX):
            known[client] = created_at_epoch
