"""What became of retrieval tokens, counted for the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CredentialsMeter:
    """What one instance has handed out."""

    retrievals_issued: int = 0
    """Retrieval tokens given to somebody: for a new client or a rotation."""

    retrievals_claimed: int = 0
    """Retrieval tokens turned into a secret."""

    retrievals_refused: int = 0
    """Claims with a token that is mistyped, unknown, used, replaced or expired."""
