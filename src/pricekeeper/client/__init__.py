"""The service from outside: for apps (`PriceKeeper`) and for whoever provisions them (`Admin`).

::

    async with PriceKeeper(url, client_id, client_secret) as keeper:
        model = await keeper.select()
        async with await keeper.acquire(model.label, {"rpm": 1, "tpm": 1200}) as lease:
            reply = call_bedrock(model.bedrock_model_id)
            await lease.adjust({"tpm": reply.total_tokens - 1200})
        await keeper.record(model.label, reply.input_tokens, reply.output_tokens)

Tokens are fetched, renewed and replaced behind the scenes. What an app acts on comes as values;
what is only shown comes as the JSON of the REST contract. Errors are in `client.errors`.
"""

from pricekeeper.client.admin import Admin
from pricekeeper.client.answers import Recorded, Selection
from pricekeeper.client.errors import (
    ForbiddenError,
    MissingError,
    QuotaSpentError,
    RateLimitedError,
    RejectedError,
    ReplyLostError,
    ServiceError,
    UnavailableError,
    UnreachableError,
)
from pricekeeper.client.keeper import Lease, PriceKeeper
from pricekeeper.client.transport import Request, Transport

__all__ = [
    "Admin",
    "ForbiddenError",
    "Lease",
    "MissingError",
    "PriceKeeper",
    "QuotaSpentError",
    "RateLimitedError",
    "Recorded",
    "RejectedError",
    "ReplyLostError",
    "Request",
    "Selection",
    "ServiceError",
    "Transport",
    "UnavailableError",
    "UnreachableError",
]
