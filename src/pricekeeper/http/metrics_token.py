"""The token that opens ``/metrics``, which shows every tenant and what it spends.

It belongs to the operator who scrapes, and to no client: an access token does not open it. Where
no token is set, none opens it.
"""

from __future__ import annotations

import hmac
from typing import Final

from pricekeeper.http.operation import Call
from pricekeeper.http.problems import AccessDeniedError

_BEARER: Final = "bearer"


def opens_metrics(authorization: str | None, token: str | None) -> bool:
    """Whether the value of an Authorization header carries the token."""
    if authorization is None or token is None:
        return False
    scheme, _, given = authorization.partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return same and scheme.lower() == _BEARER


def check_metrics_token(call: Call) -> None:
    """Raise unless the call carries the token."""
    authorization = call.request.header(b"authorization")
    if not opens_metrics(authorization, call.services.settings.metrics_token):
        raise AccessDeniedError("the metrics token is needed")
