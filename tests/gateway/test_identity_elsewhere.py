"""Two gateways on one store: what ends an app's credentials at one holds at the other, in time.

Time is a clock that the test moves, so nothing waits.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.test_identity import call, end_by, signed_by
from gateway.world import App, ShiftedClock, World, gateway_settings
from pricekeeper.settings.locations import parse_store_location
from pricekeeper.standin import running
from pricekeeper.testing.serving import running_service
from slowness import slow
from two_instances import HALF_A_MINUTE_MS

SIGNED, TOKEN, PAIR = "signed", "token", "pair"
EVERYTHING = {SIGNED, TOKEN, PAIR}


@dataclass
class Thief:
    """Has an app's secret, its token, and credentials made with it."""

    world: World
    app: App
    keys: dict[str, str]

    def ways_in(self) -> set[str]:
        """How a call gets through at the moment."""
        statuses = {
            SIGNED: signed_by(self.world, self.keys),
            TOKEN: call(self.world, self.app.token).status,
            PAIR: call(self.world, self.app.pair).status,
        }
        assert set(statuses.values()) <= {200, 403}
        return {way for way, status in statuses.items() if status == 200}


@pytest.fixture(scope="module")
def gateways(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    folder: Path = tmp_path_factory.mktemp("gateways")
    clock = ShiftedClock()
    with ExitStack() as opened:
        standin = opened.enter_context(running())
        settings = replace(gateway_settings(folder, standin.url), store=parse_store_location(store))
        here, there = (
            World(opened.enter_context(running_service(settings, clock)), standin.ledger, clock)
            for _ in range(2)
        )
        yield here, there


@pytest.mark.parametrize("end", ["frozen", *slow("revoked", "rotated", "deleted", "org-deleted")])
def test_what_ends_an_app_here_ends_its_calls_there_within_half_a_minute(
    gateways: tuple[World, World], end: str
) -> None:
    """Signatures, tokens and pairs alike; calls until then are counted."""
    here, there = gateways
    here.ledger.clear()
    app = App(here.api).register()
    keys = app.aws_credentials()
    thieves = [Thief(world, app, keys) for world in (here, there)]
    assert [thief.ways_in() for thief in thieves] == [EVERYTHING, EVERYTHING]
    end_by(here, app, end)
    assert thieves[0].ways_in() == set()
    here.clock.shift_ms += HALF_A_MINUTE_MS
    assert thieves[1].ways_in() == set()
    assert here.ledger.attempts == {"Converse": 6}


@pytest.mark.parametrize(("way", "left"), [(TOKEN, {SIGNED, PAIR}), (SIGNED, {TOKEN, PAIR})])
def test_one_token_that_is_revoked_here_ends_there_and_no_other(
    gateways: tuple[World, World], way: str, left: set[str]
) -> None:
    """The token of a session, or the one that comes with credentials for AWS's SDKs."""
    here, there = gateways
    app = App(here.api).register()
    keys = app.aws_credentials()
    thieves = [Thief(world, app, keys) for world in (here, there)]
    assert [thief.ways_in() for thief in thieves] == [EVERYTHING, EVERYTHING]
    token = app.token if way == TOKEN else keys["Token"]
    assert here.api.call("POST", "/auth/revoke", {"token": token}, token=token).status == 200
    assert thieves[0].ways_in() == left
    here.clock.shift_ms += HALF_A_MINUTE_MS
    assert thieves[1].ways_in() == left


def test_until_then_the_other_gateway_believes_what_it_remembers(
    gateways: tuple[World, World],
) -> None:
    """Which is what the bound is for: without it, the test above would see nothing."""
    here, there = gateways
    app = App(here.api).register()
    thief = Thief(there, app, app.aws_credentials())
    assert thief.ways_in() == EVERYTHING
    end_by(here, app, "revoked")
    assert thief.ways_in() == EVERYTHING
    here.clock.shift_ms += HALF_A_MINUTE_MS
    assert thief.ways_in() == set()
