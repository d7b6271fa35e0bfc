"""A server that is killed under load has in its totals what it has acknowledged."""

import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from http_fixtures import ENVIRONMENT, FORCED, Api, Tenant, usage
from serving import running_server

WRITERS = 8
RECORDS = 60


def test_kill_9_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    sent: list[str] = []
    enough = threading.Event()
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()

        def write() -> None:
            with suppress(OSError, HTTPException):  # before the answer, or in the middle of it
                for _ in range(RECORDS):
                    body = record()
                    sent.append(body["request_id"])
                    if tenant.record(body).status == 202:
                        acknowledged.append(body["request_id"])
                    if len(acknowledged) >= WRITERS * RECORDS // 3:
                        enough.set()

        writers = [threading.Thread(target=write) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        enough.wait(timeout=60)
        server.kill()
        for writer in writers:
            writer.join()
    assert len(acknowledged) < len(sent)

    settings = {**ENVIRONMENT, "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS": "1"}
    with running_server(tmp_path, environment=settings) as server:
        tenant.api = Api(server.url)
        for start in range(0, len(acknowledged), 100):
            again = [record(request_id=name) for name in acknowledged[start : start + 100]]
            assert tenant.record_many(*again).json["duplicates"] == len(again)
        status = tenant.select(FORCED).json["quota_status"]
        spent = status["models_status"]["economy"]["spend_usd_micros"]
        counted, rest = divmod(spent, tenant.record(record()).json["cost_usd_micros"])
        assert rest == 0
        assert len(acknowledged) <= counted <= len(sent)


def record(**changes: Any) -> dict[str, Any]:
    """A record that costs a whole number of micro-dollars."""
    return usage(model_label="economy", input_tokens=1000, output_tokens=0, **changes)
