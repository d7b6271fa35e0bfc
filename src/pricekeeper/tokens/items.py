"""The table ``RevokedTokens``: access tokens that were revoked before their time.

The key is the token's ``jti`` and the item lasts until the token itself would have expired.
Tokens that end with their session, or with everything of their client, need no item here.
"""

from __future__ import annotations

from pricekeeper.storage import ITEM_ABSENT, Key, Put, Table
from pricekeeper.storage.tables import REVOKED_TOKENS
from pricekeeper.tokens.principal import Principal


def revocation_key(token_id: str) -> tuple[Table, Key]:
    """The table and key of a token's revocation."""
    return REVOKED_TOKENS, Key(token_id)


def revocation(revoked: Principal, now_epoch: int) -> Put:
    """Revoke an access token; once is enough."""
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
