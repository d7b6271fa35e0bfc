"""Python clients of the service, for apps (`wrap`, keepers) and administrators (`Admin`).

::

    bedrock = pricekeeper.wrap(boto3.client("bedrock-runtime"))
    bedrock.converse(modelId="auto", messages=messages)
"""

from pricekeeper.client.admin import Admin
from pricekeeper.client.answers import Authorization, Captured, Lease, Recorded, Selection, Settled
from pricekeeper.client.api import Api
from pricekeeper.client.calls import ModelCall
from pricekeeper.client.errors import (
    BreakerOpenError,
    ClientFrozenError,
    DeniedBy,
    DeniedError,
    ForbiddenError,
    MissingError,
    NoAnswerError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
    ReplyLostError,
    ServiceError,
    SpoolFullError,
    UnavailableError,
    UnreachableError,
)
from pricekeeper.client.keeper import AsyncPriceKeeper, PriceKeeper
from pricekeeper.client.transport import Request, Transport
from pricekeeper.client.wrapping import wrap

__all__ = [
    "Admin",
    "Api",
    "AsyncPriceKeeper",
    "Authorization",
    "BreakerOpenError",
    "Captured",
    "ClientFrozenError",
    "DeniedBy",
    "DeniedError",
    "ForbiddenError",
    "Lease",
    "MissingError",
    "ModelCall",
    "NoAnswerError",
    "PriceKeeper",
    "QuotaSpentError",
    "RateLimitedError",
    "Recorded",
    "RejectedError",
    "ReplyLostError",
    "Request",
    "Selection",
    "ServiceError",
    "Settled",
    "SpoolFullError",
    "Transport",
    "UnavailableError",
    "UnreachableError",
    "wrap",
]
