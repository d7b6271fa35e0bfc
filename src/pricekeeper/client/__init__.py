"""The service from outside: for apps (`Api`) and for whoever provisions them (`Admin`).

::

    async with Api(url, client_id, client_secret) as keeper:
        async with keeper.call({"rpm": 1, "tpm": 4_000}) as call:
            reply = bedrock.converse(modelId=call.model_id, messages=messages)
            call.used(reply)

A call that Bedrock itself refused is free. After any other failure nobody knows what is billed, so
nothing is given back; `call.at_most` names what is recorded then.

`keeper.select`, `keeper.acquire` and `keeper.record` are its parts, for whoever needs them apart.
`keeper.authorize` is for apps with budgets: one decision before the call that holds the most that
it can cost, and one settlement after it.
Tokens are fetched, renewed and replaced behind the scenes. What an app acts on comes as values;
what is only shown comes as the JSON of the REST contract. Errors are in `client.errors`.
"""

from pricekeeper.client.admin import Admin
from pricekeeper.client.answers import Captured, Recorded, Selection
from pricekeeper.client.api import Api
from pricekeeper.client.calls import Authorization, Lease, ModelCall
from pricekeeper.client.errors import (
    ClientFrozenError,
    DeniedBy,
    DeniedError,
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
from pricekeeper.client.transport import Request, Transport

__all__ = [
    "Admin",
    "Api",
    "Authorization",
    "Captured",
    "ClientFrozenError",
    "DeniedBy",
    "DeniedError",
    "ForbiddenError",
    "Lease",
    "MissingError",
    "ModelCall",
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
