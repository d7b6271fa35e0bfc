"""Who a client is: secrets, the one-time tokens that fetch them, and what rests of them.

`Provisioning` registers clients, `Credentials` rotates, hands out, checks and revokes.
`ProvisioningKeys` are the keys of single organisations. Both may share a `Verifier`.
"""

from pricekeeper.credentials.hashing import Pepper, Peppers
from pricekeeper.credentials.provisioning import Provisioned, Provisioning
from pricekeeper.credentials.provisioning_keys import ProvisioningKeys
from pricekeeper.credentials.sealing import Sealer
from pricekeeper.credentials.secret import Secret
from pricekeeper.credentials.service import (
    Authenticated,
    ClaimedSecret,
    Credentials,
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
