"""The token that opens ``/metrics``, which shows every tenant and what it spends.

It belongs to the operator who scrapes, and to no client: an access token does not open it. Where
no token is set, none opens it.
"""

from __future__ import annotations

import hmac
from typing import Final

from pricekeeper.http.operation import Call
from pricekeeper.http.problems import AccessDeniedError, BearerDeniedError

_BEARER: Final = "bearer"


def require_metrics_token(authorization: str | None, token: str | None) -> None:
    """Raise unless the value of an Authorization header carries the token."""
    if authorization is None:
        raise AccessDeniedError("the metrics token is needed")
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != _BEARER or not given:
        raise AccessDeniedError("the metrics token is needed", guess=True)
    same = token is not None and hmac.compare_digest(
        given.strip().encode("utf-8", "replace"), token.encode()
    )
    if not same:
        raise BearerDeniedError("that is not the metrics token", guess=True)


def check_metrics_token(call: Call) -> None:
    """Raise unless the call carries the token."""
    authorization = call.request.header(b"authorization")
    require_metrics_token(authorization, call.services.settings.metrics_token)
