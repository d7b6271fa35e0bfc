"""The table ``RevokedTokens``: access tokens that were revoked before their expiry.

The key is the ``jti``. Tokens that end with their session or client need no item.
"""

from __future__ import annotations

from pricekeeper.storage import ITEM_ABSENT, Key, Put, Table
from pricekeeper.storage.tables import REVOKED_TOKENS
from pricekeeper.tokens.access_token import Principal


def revocation_key(token_id: str) -> tuple[Table, Key]:
    """The table and key of a token's revocation."""
    return REVOKED_TOKENS, Key(token_id)


def revocation(revoked: Principal, now_epoch: int) -> Put:
    """Revoke an access token, unless it is revoked."""
    return Put(
        REVOKED_TOKENS,
        {
            "PK": revoked.token_id,
            "token_type": "access",
            "client_id": revoked.client_id,
            "revoked_at_epoch": now_epoch,
            "original_expiry_epoch": revoked.expires_at_epoch,
            "expires_at_epoch": revoked.expires_at_epoch,
        },
        ITEM_ABSENT,
    )
