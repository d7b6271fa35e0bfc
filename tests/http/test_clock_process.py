"""A real process on the clocks of the machine: a file moves what ``time.time_ns`` says."""

from pathlib import Path

import pytest

from http_fixtures import Api, Tenant, usage
from machine_clock import Machine
from scraping import scrape
from serving import running_server

DAY_SECS = 86_400


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "clock").mkdir()
    return Machine(tmp_path / "clock")


def test_a_running_service_sees_its_clock_leap_and_come_back(
    machine: Machine, tmp_path: Path
) -> None:
    """Nothing is issued meanwhile, usage counts once, and a revoked token stays so after a kill."""
    with running_server(tmp_path, environment=machine.environment) as server:
        tenant = Tenant(Api(server.url)).register()
        api, token, record = tenant.api, tenant.app_token, usage()

        revoked = tenant.login()["access_token"]
        assert api.call("POST", "/auth/revoke", {"token": revoked}, token=revoked).status == 200
        for off_by_secs in (DAY_SECS, -DAY_SECS):
            machine.is_off_by(off_by_secs)
            put_off = tenant.try_login()
            assert (put_off.status, put_off.json["code"]) == (503, "CLOCK_IN_DOUBT")
            assert api.call("GET", "/readyz").json == {"status": "clock in doubt"}
            samples = scrape(api)
            assert samples["pricekeeper_clock_in_doubt"] == 1
            assert abs(samples["pricekeeper_clock_leap_seconds"] - off_by_secs) < 60
            counted = api.call("POST", f"{tenant.app}/usage", record, token=token)
            assert counted.json["status"] == ("accepted" if off_by_secs > 0 else "duplicate")
            assert api.call("GET", f"{tenant.app}/limits", token=revoked).status == 401
            machine.is_off_by(0)
            assert tenant.try_login().status == 200
        assert '"event":"clock_in_doubt"' in server.output().replace(": ", ":")
        server.kill()
    with running_server(tmp_path, environment=machine.environment) as server:
        api = Api(server.url)
        assert api.call("GET", f"{tenant.app}/limits", token=revoked).status == 401
        assert api.call("GET", f"{tenant.app}/limits", token=token).status == 200
        assert api.call("GET", "/readyz").json == {"status": "ready"}
        assert scrape(api)["pricekeeper_clock_leaps_total"] == 0
