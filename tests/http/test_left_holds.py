"""A service that was killed with SIGKILL shows and charges what it had granted, once it is back.

Its clock is twenty seconds later then: the hold has expired, and no sweep visits its region for
minutes.
"""

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from http_fixtures import Api, store_url
from http_shop import WORST, Shop, budget, open_shop
from machine_clock import Machine
from scraping import until
from serving import running_server

HOLD_SECS = 10
DOWN_SECS = 20


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, request.param, tmp_path)


def test_an_expired_hold_is_unsettled_at_once_and_charged_soon_after_kill_9(
    store: str, tmp_path: Path
) -> None:
    """Every answer that has its state says so, the budget follows, and a late capture counts."""
    (tmp_path / "clock").mkdir()
    machine = Machine(tmp_path / "clock")
    with running_server(tmp_path, environment=machine.environment, store=store) as server:
        shop = open_shop(Api(server.url), budgets=[budget("monthly", 1_000_000)])
        left, another = (shop.grant(hold_secs=HOLD_SECS) for _ in range(2))
        open_now = shop.grant(hold_secs=3_600)
        server.kill()

    machine.is_off_by(DOWN_SECS)
    with running_server(tmp_path, environment=machine.environment, store=store) as server:
        shop = Shop(shop.tenant)
        shop.tenant.api = Api(server.url)
        assert [shop.show(one)["status"] for one in (left, another)] == ["unsettled"] * 2
        assert listed(shop, "unsettled") == {left, another}
        assert listed(shop, "open") == {open_now}
        days = f"from={_day(-1)}&to={_day(0)}"
        spend = shop.api.provision("GET", f"/api/v1/spend?{days}&group_by=org").json
        assert spend["total"]["unsettled_usd_micros"] == 2 * WORST
        assert spend["total"]["held_usd_micros"] == WORST

        def charged() -> bool:
            shown = shop.budgets()["monthly"]
            return (shown["unsettled_usd_micros"], shown["held_usd_micros"]) == (2 * WORST, WORST)

        until(charged, lambda: shop.budgets()["monthly"])
        assert shop.capture(left).status == 200
        assert shop.show(left)["status"] == "captured"
        assert shop.budgets()["monthly"]["unsettled_usd_micros"] == WORST


def listed(shop: Shop, status: str) -> set[str]:
    found = shop.call("GET", f"authorizations?status={status}").json["authorizations"]
    return {one["authorization_id"] for one in found}


def _day(number: int) -> str:
    """The day so many days from today, where the organisation is."""
    zone = ZoneInfo("Europe/Berlin")
    return f"{datetime.now(zone) + timedelta(days=number, seconds=DOWN_SECS):%Y-%m-%d}"
