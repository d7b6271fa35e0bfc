"""A service that stops finishes settlements of answered calls first."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.models import bill
from gateway.world import App, Books, running_world
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.gateway.settling import Settlements
from pricekeeper.ledger.draft import Draft
from pricekeeper.ledger.log import OrgLog
from pricekeeper.standin import running


def test_a_begun_capture_that_fails_while_the_service_stops_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, close = OrgLog.append, Settlements.close
    stopping, attempts = asyncio.Event(), list[Draft]()

    async def fail_once(log: OrgLog, draft: Draft, *more: Any) -> None:
        if draft.outcomes:
            attempts.append(draft)
            if len(attempts) == 1:
                await stopping.wait()
                raise StoreUnavailableError("throttled for a moment")
        await append(log, draft, *more)

    async def stop(settlements: Settlements) -> None:
        stopping.set()
        await close(settlements)

    with running() as standin:
        with running_world(tmp_path / "data", standin.url, standin.ledger) as world:
            app = App(world.api).register()
            assert world.converse(app).status == 200
            world.assert_equal(app)
            monkeypatch.setattr(Settlements, "close", stop)
            monkeypatch.setattr(OrgLog, "append", fail_once)
            assert world.converse(app).status == 200
            world.stop()
        monkeypatch.undo()
        with running_world(tmp_path / "data", standin.url, standin.ledger) as world:
            app.api = world.api
            app.token = app.login()
            assert len(app.usage()) == 2
            assert app.books() == Books(bill(standin.ledger.entries), 0, 0)
