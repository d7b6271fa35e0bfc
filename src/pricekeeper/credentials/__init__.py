"""Secrets of clients, the one-time tokens that retrieve them, and their hashes.

`Provisioning` registers clients. `Credentials` rotates, issues, checks and revokes.
`ProvisioningKeys` are the keys of single organisations. Both may share a `Verifier`.
"""

from pricekeeper.credentials.peppers import Pepper, Peppers
from pricekeeper.credentials.provisioning_keys import ProvisioningKeys
from pricekeeper.credentials.sealing import Sealer
from pricekeeper.credentials.secret import Secret
from pricekeeper.credentials.service import (
    Authenticated,
    ClaimedSecret,
    Credentials,
    Provisioned,
    Provisioning,
    Retrieval,
    Rotation,
)
from pricekeeper.credentials.verification import Verifier

__all__ = [
    "Authenticated",
    "ClaimedSecret",
    "Credentials",
    "Pepper",
    "Peppers",
    "Provisioned",
    "Provisioning",
    "ProvisioningKeys",
    "Retrieval",
    "Rotation",
    "Sealer",
    "Secret",
    "Verifier",
]
