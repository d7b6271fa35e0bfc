"""Forecasts: where the budgets of a client will end."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.http.operation import APP, ORG, Access, Answer, Call, Operation
from pricekeeper.usecases import forecast as cases
from pricekeeper.usecases.wire import forecast as wire


async def get_forecast(call: Call) -> Answer:
    """Where every budget that applies will end, and when it will be spent."""
    return Answer(200, await cases.list_forecasts(call.services, call.policy))


_row: Final = partial(
    Operation,
    handler=get_forecast,
    answers={200: wire.ForecastList},
    tag="aggregates",
    limit="aggregates",
    role=Role.VIEWER,
)
OPERATIONS: Final = (
    _row("GET", f"{ORG}/forecast", "getOrgForecast", access=Access.ORG),
    _row("GET", f"{APP}/forecast", "getAppForecast", access=Access.APP),
)
