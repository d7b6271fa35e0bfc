"""Signing keys that come from elsewhere: rotated without a restart, and kept when that fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import SettingsError
from pricekeeper.secret_sources import AWS_REFRESH_MS
from pricekeeper.tokens import (
    PUBLISH_AHEAD_SECS,
    Keyring,
    Keys,
    KeyWatcher,
    dump_keyring,
    new_keyring,
    parse_keyring,
)
from pricekeeper.tokens.keys import HURRY_MS


class Shelf:
    """Where a keyring is kept; it can be put away."""

    def __init__(self, keyring: Keyring) -> None:
        self.text = dump_keyring(keyring).decode()
        self.is_there = True
        self.looks = 0

    async def read(self) -> str:
        self.looks += 1
        if not self.is_there:
            raise SettingsError("PRICEKEEPER_SIGNING_KEYS", "aws:keys: it is not there")
        return self.text


class World:
    """A clock, a place for keys, and an instance that takes its keys from there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shelf = Shelf(new_keyring(self.now_epoch))
        self.keys = Keys(parse_keyring(self.shelf.text), self.clock)
        self.watcher = KeyWatcher(
            self.keys, self.shelf.read, self.shelf.text, self.clock, AWS_REFRESH_MS
        )

    @property
    def now_epoch(self) -> int:
        return self.clock.now_ms() // 1000

    def rotate(self, ahead_secs: int = PUBLISH_AHEAD_SECS) -> str:
        """Put a new key beside the old ones, as an operator would."""
        rotated = parse_keyring(self.shelf.text).rotated(self.now_epoch, ahead_secs)
        self.shelf.text = dump_keyring(rotated).decode()
        return rotated.entries[-1].kid

    def published(self) -> list[str]:
        return [key["kid"] for key in self.keys.jwks()["keys"]]

    async def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, and let woken tasks run."""
        self.clock.advance_ms(duration_ms)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    running = asyncio.create_task(made.watcher.run_forever())
    await made.pass_ms(0)
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_key_beside_the_old_one_is_taken_over_within_a_minute(world: World) -> None:
    """Without a restart; the old one is believed on."""
    (old,) = world.published()
    new = world.rotate()
    assert world.published() == [old]
    await world.pass_ms(HURRY_MS)
    await world.pass_ms(AWS_REFRESH_MS - HURRY_MS)
    assert world.published() == [old, new]
    assert world.keys.meter.refreshes == {"new": 1}


async def test_every_instance_knows_a_key_before_one_signs_with_it(world: World) -> None:
    """It is published for five minutes, and looked for every minute."""
    assert AWS_REFRESH_MS < PUBLISH_AHEAD_SECS * 1000
    (old,) = world.published()
    new = world.rotate()
    for _ in range(PUBLISH_AHEAD_SECS * 1000 // AWS_REFRESH_MS - 1):
        await world.pass_ms(HURRY_MS)
        await world.pass_ms(AWS_REFRESH_MS - HURRY_MS)
        assert (world.published(), world.keys.signing_key().kid) == ([old, new], old)
    await world.pass_ms(AWS_REFRESH_MS)
    assert world.keys.signing_key().kid == new


async def test_what_has_not_changed_is_left_alone(world: World) -> None:
    revision = world.keys.revision
    for _ in range(3):
        await world.pass_ms(HURRY_MS)
        await world.pass_ms(AWS_REFRESH_MS - HURRY_MS)
    assert (world.shelf.looks, world.keys.revision) == (3, revision)


async def test_an_unknown_key_is_looked_for_sooner_but_not_each_time(world: World) -> None:
    """The old keys were dropped. A flood of made-up keys costs one read in ten seconds."""
    world.shelf.text = dump_keyring(new_keyring(world.now_epoch)).decode()
    (fresh,) = parse_keyring(world.shelf.text).entries
    for _ in range(100):
        assert world.keys.find_refresh_key(fresh.kid) is None
    await world.pass_ms(HURRY_MS)
    assert (world.shelf.looks, world.published()) == (1, [fresh.kid])
    for _ in range(5):
        assert world.keys.verifying_key("made-up") is None
        await world.pass_ms(HURRY_MS // 2)
    assert world.shelf.looks <= 4


@pytest.mark.parametrize("text", ["", "no JSON", '{"version": 1, "keys": []}'])
async def test_keys_that_were_good_go_on(
    world: World, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged or missing text is logged and counted, and no client is logged out."""
    good, (kid,) = world.shelf.text, world.published()
    world.shelf.text = text
    await world.pass_ms(HURRY_MS)
    await world.pass_ms(AWS_REFRESH_MS - HURRY_MS)
    world.shelf.is_there = False
    await world.pass_ms(HURRY_MS)
    await world.pass_ms(AWS_REFRESH_MS - HURRY_MS)
    assert (world.published(), world.keys.signing_key().kid) == ([kid], kid)
    assert world.keys.meter.refreshes == {"failed": 2}
    assert capsys.readouterr().out.count("keyring_unusable") == 2
    world.shelf.text, world.shelf.is_there = good, True
    new = world.rotate()
    await world.pass_ms(HURRY_MS)
    await world.pass_ms(AWS_REFRESH_MS - HURRY_MS)
    assert world.published() == [kid, new]
