"""Settings with their ETag, reasons in a body, and the claim of a secret."""

from __future__ import annotations

from pricekeeper.errors import InvalidValueError, NotFoundError
from pricekeeper.http.edge import parse_json, read_body
from pricekeeper.http.gate import count_failure, limit_client
from pricekeeper.http.oauth import NO_STORE
from pricekeeper.http.operation import Answer, Call, Handler
from pricekeeper.usecases import provisioning as cases
from pricekeeper.usecases.table import UseCase
from pricekeeper.wire.provisioning import ReasonBody

_CLAIMANT = "retrieval-token"
"""The actor of a claim: the retrieval token is its only credential."""


def answer_tagged(case: UseCase) -> Handler:
    """A handler that answers with settings and their ETag, which a patch may expect."""

    async def answer(call: Call) -> Answer:
        settings = await case(call)
        return Answer(200, settings, ((b"etag", cases.etag_of(settings).encode()),))

    return answer


def reading_reason(handler: Handler) -> Handler:
    """The handler of a DELETE whose reason is in the query or in a body."""

    async def answer(call: Call) -> Answer:
        body = await read_body(call.request)
        if body:
            call.body = parse_json(body, ReasonBody)
            if call.request.query.get("reason", call.body.reason) != call.body.reason:
                raise InvalidValueError("reason", "is in the query and, differently, in the body")
        return await handler(call)

    return answer


async def claim_secret(call: Call) -> Answer:
    """Exchange a retrieval token for the secret, once."""
    try:
        claim = await call.services.credentials.find_claim(call.body.token)
        await limit_client(call, claim.client_id)
        call.actor = _CLAIMANT
        return Answer(200, await cases.complete_claim(call.services, claim, call.by()), NO_STORE)
    except NotFoundError:
        await count_failure(call)
        raise
