"""A budget for exactly twenty calls, and two hundred that come at once to two workers."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.models import BY_LABEL, write_deployment
from gateway.world import App, ShiftedClock, World, converse_body, directive
from http_fixtures import ENVIRONMENT, Api
from pricekeeper.bedrock import judge
from pricekeeper.standin import running
from serving import running_server
from slowness import slow
from workers import connections_to_each

OUTPUT_TOKENS = 10
CALLS, AT_ONCE, BUDGETED, WORKERS = 200, 50, 20, 2


def exact_call() -> tuple[dict[str, Any], int]:
    """A call that costs what is held for it, because the stand-in reads as much as it could."""

    def body(input_tokens: int) -> dict[str, Any]:
        text = directive(
            input_tokens=input_tokens, output_tokens=OUTPUT_TOKENS, delay_ms=300, events=2
        )
        return converse_body(text, inferenceConfig={"maxTokens": OUTPUT_TOKENS})

    bound = judge(body(100), None).bounds.input_tokens
    assert len(str(bound)) == 3  # as long as the number that was in its place
    model = BY_LABEL["premium"]
    return body(bound), bound * model.input + OUTPUT_TOKENS * model.output


@pytest.mark.parametrize("operation", ["converse-stream", *slow("converse")])
def test_exactly_as_many_calls_reach_the_upstream_as_the_budget_has_room_for(
    tmp_path: Path, store: str, operation: str
) -> None:
    """Not one more, however many come at once, and not one less."""
    body, cost = exact_call()
    with running() as standin:
        environment = {
            **ENVIRONMENT,
            "PRICEKEEPER_BEDROCK_UPSTREAM": standin.url,
            "PRICEKEEPER_CONFIG": str(write_deployment(tmp_path)),
        }
        with running_server(
            tmp_path, "--workers", str(WORKERS), environment=environment, store=store
        ) as server:
            world = World(server.url, standin.ledger, ShiftedClock(), standin.url)
            app = App(Api(server.url)).register(limit_usd_micros=BUDGETED * cost)
            statuses: list[int] = []

            with connections_to_each(server, WORKERS, AT_ONCE // WORKERS) as connections:

                def work(connection: Any) -> None:
                    path = f"/bedrock/model/premium/{operation}"
                    for _ in range(CALLS // AT_ONCE):
                        reply = connection.call("POST", path, body, token=app.pair)
                        statuses.append(reply.status)

                threads = [threading.Thread(target=work, args=(one,)) for one in connections]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert sorted(statuses) == [200] * BUDGETED + [400] * (CALLS - BUDGETED)
            assert standin.ledger.billed_calls == BUDGETED
            assert world.assert_equal(app) == BUDGETED * cost
            last = json.dumps(app.api.call("GET", f"{app.path}/budgets", token=app.token).json)
            assert '"remaining_usd_micros": 0' in last
