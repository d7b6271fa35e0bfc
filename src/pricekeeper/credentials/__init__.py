"""Secrets of clients, the one-time tokens that retrieve them, and their hashes.

`Credentials` registers clients, and rotates, issues, checks and revokes their secrets.
`ProvisioningKeys` are the keys of single organisations. Both may share a `Verifier`.
"""

from pricekeeper.credentials.items import Claimable
from pricekeeper.credentials.peppers import Pepper, Peppers
from pricekeeper.credentials.provisioning_keys import ProvisioningKeys
from pricekeeper.credentials.sealing import Sealer
from pricekeeper.credentials.secret import Secret
from pricekeeper.credentials.service import (
    Authenticated,
    ClaimedSecret,
    Credentials,
    Provisioned,
    Retrieval,
    Rotation,
)
from pricekeeper.credentials.verification import Verifier

__all__ = [
    "Authenticated",
    "Claimable",
    "ClaimedSecret",
    "Credentials",
    "Pepper",
    "Peppers",
    "Provisioned",
    "ProvisioningKeys",
    "Retrieval",
    "Rotation",
    "Sealer",
    "Secret",
    "Verifier",
]
