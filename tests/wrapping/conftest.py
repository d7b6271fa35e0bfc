"""A program between the real service and a stand-in for Bedrock."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pricekeeper.authorizations import expiry
from pricekeeper.cli.demo import demo_settings
from pricekeeper.standin import running
from pricekeeper.testing.serving import running_service
from tokens.conftest import MovableClock
from wrapping.deployment import write_deployment
from wrapping.world import MakeProgram, Program, World

EXPIRY_INTERVAL_MS = 20
START = datetime(2027, 1, 2, tzinfo=UTC)
"""So far from the end of a month that no test moves the clock into the next."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("service")
    settings = replace(
        demo_settings(folder), config_path=write_deployment(folder), api_limits_per_minute={}
    )
    clock = MovableClock()
    clock.pass_ms(int(START.timestamp() * 1000) - time.time_ns() // 1_000_000)
    with (
        pytest.MonkeyPatch.context() as patch,
        running() as standin,
    ):
        patch.setattr(expiry, "EXPIRY_INTERVAL_MS", EXPIRY_INTERVAL_MS)
        with running_service(settings, clock) as url:
            yield World(url, settings.provisioning_key or "", clock, standin)


@pytest.fixture
def make_program(world: World, tmp_path: Path) -> Iterator[MakeProgram]:
    """Makes programs, each with an organisation and a ledger of its own."""
    made: list[Program] = []
    world.standin.ledger.clear()

    def make(**more: object) -> Program:
        program = Program(world, tmp_path / str(len(made)), **more)  # type: ignore[arg-type]
        program.register()
        made.append(program)
        return program

    yield make
    for program in made:
        program.close()


@pytest.fixture
def program(make_program: MakeProgram) -> Program:
    return make_program()
