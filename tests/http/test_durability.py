"""A server that is killed under load has in its totals what it has acknowledged."""

import threading
from http.client import HTTPException
from pathlib import Path

from http_fixtures import ENVIRONMENT, Api, Tenant, usage
from serving import running_server

WRITERS = 8
RECORDS = 60


def test_kill_9_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    sent: list[str] = []
    lock = threading.Lock()
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        enough = threading.Event()

        def write() -> None:
            for _ in range(RECORDS):
                record = usage(model_label="economy", input_tokens=1000, output_tokens=0)
                with lock:
                    sent.append(record["request_id"])
                try:
                    path = f"{tenant.app}/usage"
                    reply = tenant.api.call("POST", path, record, token=tenant.app_token)
                except (OSError, HTTPException):  # before the answer, or in the middle of it
                    return
                if reply.status == 202:
                    with lock:
                        acknowledged.append(record["request_id"])
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
        again = [
            tenant.record(
                model_label="economy", input_tokens=1000, output_tokens=0, request_id=name
            ).json["status"]
            for name in acknowledged
        ]
        assert set(again) == {"duplicate"}
        path = f"{tenant.app}/model-selection?force_check=true"
        status = tenant.api.call("GET", path, token=tenant.app_token).json["quota_status"]
        spent = status["models_status"]["economy"]["spend_usd_micros"]
        cost = spent // len(acknowledged)
        assert len(acknowledged) * cost <= spent
        one = usage(model_label="economy", input_tokens=1000, output_tokens=0)
        price = tenant.record(one).json
        counted, rest = divmod(spent, price["cost_usd_micros"])
        assert rest == 0
        assert len(acknowledged) <= counted <= len(sent)
