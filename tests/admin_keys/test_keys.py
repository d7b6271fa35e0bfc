"""Admin keys on every store: made, shown once, listed, rotated with an overlap, ended."""

import asyncio
import re
from dataclasses import replace

import pytest

from admin_keys.conftest import BY, counts, create, keys_of
from credentials.conftest import NEW_PEPPER, OLD_PEPPER
from faulty_store import REFUSED, Faults, FaultyStore, Interleaving, Overtaken
from pricekeeper.admin_keys import AdminKeys, IssuedKey, list_roots, parse_key_name
from pricekeeper.admin_keys.items import HASH, item_key
from pricekeeper.admin_keys.service import KEY_AGE_MS_MAX, LAST_USED_SECS
from pricekeeper.authority import ALL_ORGS, Coverage, KeyKind, Role, only
from pricekeeper.errors import (
    ConflictError,
    InvalidValueError,
    NotFoundError,
    NotPermittedError,
    StoreUnavailableError,
)
from pricekeeper.storage import Set, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from stores import stored
from tenants.conftest import new_org_id
from tokens.conftest import MovableClock

HALF_A_MINUTE_MS = 30_000
HOUR_MS = 3_600_000


async def ids_of(keys: AdminKeys, within: Coverage = ALL_ORGS) -> list[str]:
    return [key.key_id for key in (await keys.list_keys(within, None, 1000)).entries]


class TestOneKey:
    async def test_it_is_recognised_and_says_what_it_may_do(self, here: AdminKeys) -> None:
        """By its text alone, for every requested organisation."""
        org_id = new_org_id()
        issued = await create(here, role=Role.OPERATOR, coverage=only(org_id))
        shown = await here.find(issued.text.reveal())
        assert shown is not None
        assert shown.is_valid
        authority = shown.key.authority
        assert (authority.kind, authority.role) == (KeyKind.ADMIN_KEY, Role.OPERATOR)
        assert authority.coverage == only(org_id)
        assert shown.key.actor == f"key/night shift/{issued.key.key_id}"
        assert shown.key.created_by == BY.actor

    async def test_its_text_can_be_recognised_by_people_and_scanners(self, here: AdminKeys) -> None:
        """A prefix, the id, 256 bits and a checksum; a mistyped one costs no read."""
        issued = await create(here)
        text = issued.text.reveal()
        assert re.fullmatch(r"pka_[A-Za-z0-9]{61}", text)
        assert text[4:16] == issued.key.key_id
        assert text not in repr(issued)

    async def test_every_other_text_is_none_of_ours(
        self, here: AdminKeys, meter: StoreMeter
    ) -> None:
        """Nor is one of another key, with this one's id in it."""
        first, second = [(await create(here)).text.reveal() for _ in range(2)]
        before = meter.calls["get"]
        for wrong in ("", "pka_", first[:-1], first + "0", first.swapcase(), first.upper()):
            assert await here.find(wrong) is None
        assert await here.find(first[:16] + second[16:]) is None
        assert meter.calls["get"] == before, "what is not well-formed is not looked for"

    async def test_a_well_formed_text_that_nobody_issued_opens_nothing(
        self, here: AdminKeys, there: AdminKeys
    ) -> None:
        """The checksum is no secret, and the id leaves 256 bits to guess."""
        issued = await create(here)
        other = await there.rotate(issued.key.key_id, 0, BY)
        assert await there.find(issued.text.reveal()) is None
        await there.delete(issued.key.key_id, BY)
        assert await there.find(other.text.reveal()) is None

    async def test_the_list_is_in_the_order_in_which_they_were_made(
        self, here: AdminKeys, clock: MovableClock
    ) -> None:
        """Page by page, and nothing in it can be shown to the service."""
        made = []
        for name in ("first", "second", "third"):
            made.append(await create(here, name=name))
            clock.pass_ms(1_000)
        ids = [issued.key.key_id for issued in made]
        assert [one for one in await ids_of(here) if one in ids] == ids
        found, after = [], None
        for _ in range(1_000):
            page = await here.list_keys(ALL_ORGS, after, 1)
            found += [key.key_id for key in page.entries]
            after = page.after
            if after is None:
                break
        assert found == await ids_of(here)
        shown = repr(await here.list_keys(ALL_ORGS, None, 1000))
        assert not any(issued.text.reveal() in shown for issued in made)
        assert "hmac" not in shown


class TestTheEnd:
    """Each ends at once where it was done, and within half a minute at every other instance."""

    def test_the_bound_is_half_a_minute(self) -> None:
        """What an instance remembers of a key is believed no longer than that."""
        assert KEY_AGE_MS_MAX == HALF_A_MINUTE_MS

    async def test_deletion(self, here: AdminKeys, there: AdminKeys, clock: MovableClock) -> None:
        """Until then the other one believes what it has read, which is what the bound is for."""
        issued = await create(here)
        assert [await counts(one, issued) for one in (here, there)] == [True, True]
        await here.delete(issued.key.key_id, BY)
        assert [await counts(one, issued) for one in (here, there)] == [False, True]
        clock.pass_ms(HALF_A_MINUTE_MS)
        assert [await counts(one, issued) for one in (here, there)] == [False, False]
        with pytest.raises(NotFoundError):
            await here.delete(issued.key.key_id, BY)

    async def test_expiry_is_at_its_second_everywhere(
        self, here: AdminKeys, there: AdminKeys, clock: MovableClock
    ) -> None:
        """It is looked at on each request. An expired key is known, so it is no guess."""
        ends_at_epoch = clock.now_ms() // 1000 + 60
        issued = await create(here, expires_at_epoch=ends_at_epoch)
        clock.pass_ms(40_000)
        assert [await counts(one, issued) for one in (here, there)] == [True, True]
        clock.pass_ms(20_000)
        for one in (here, there):
            shown = await one.find(issued.text.reveal())
            assert shown is not None
            assert not shown.is_valid

    async def test_a_rotation_without_grace(
        self, here: AdminKeys, there: AdminKeys, clock: MovableClock
    ) -> None:
        """The new text is valid everywhere at once; its first use ends the old one there."""
        issued = await create(here)
        assert await counts(there, issued)
        fresh = await here.rotate(issued.key.key_id, 0, BY)
        assert [await counts(here, one) for one in (issued, fresh)] == [False, True]
        assert await counts(there, issued)
        clock.pass_ms(HALF_A_MINUTE_MS)
        assert not await counts(there, issued)
        again = await here.rotate(issued.key.key_id, 0, BY)
        assert [await counts(there, one) for one in (again, fresh)] == [True, False]

    async def test_a_rotation_with_an_overlap(
        self, here: AdminKeys, there: AdminKeys, clock: MovableClock
    ) -> None:
        """Both texts count until the grace ends; it ends at its second everywhere."""
        issued = await create(here)
        fresh = await here.rotate(issued.key.key_id, 2, BY)
        assert fresh.key.old_text_ends_at_epoch == fresh.key.rotated_at_epoch + 7_200  # type: ignore[operator]
        for one in (here, there):
            assert [await counts(one, key) for key in (issued, fresh)] == [True, True]
        clock.pass_ms(2 * HOUR_MS - 20_000)
        for one in (here, there):
            assert [await counts(one, key) for key in (issued, fresh)] == [True, True]
        clock.pass_ms(20_000)
        for one in (here, there):
            assert [await counts(one, key) for key in (issued, fresh)] == [False, True]

    async def test_a_read_that_was_under_way_is_not_remembered(
        self, store: Store, clock: MovableClock
    ) -> None:
        """It may have missed the deletion, which was acknowledged before it was back."""
        slow = SlowReads(store)
        keys = keys_of(slow, clock)  # type: ignore[arg-type]
        issued = await create(keys)
        slow.gate.clear()
        reading = asyncio.create_task(counts(keys, issued))
        await slow.has_read.wait()
        slow.holds = False
        await keys.delete(issued.key.key_id, BY)
        slow.gate.set()
        await reading
        assert not await counts(keys, issued)


class SlowReads:
    """A store whose answers to reads are on their way until the gate opens."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.gate.set()
        self.has_read = asyncio.Event()
        self.holds = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, *arguments: object, **options: object) -> object:
        found = await self._store.get(*arguments, **options)  # type: ignore[arg-type]
        if self.holds:
            self.has_read.set()
            await self.gate.wait()
        return found


class TestRotation:
    async def test_the_name_the_role_and_the_end_stay(
        self, here: AdminKeys, clock: MovableClock
    ) -> None:
        ends_at_epoch = clock.now_ms() // 1000 + 86_400
        issued = await create(here, role=Role.VIEWER, expires_at_epoch=ends_at_epoch)
        fresh = await here.rotate(issued.key.key_id, 24, BY)
        assert fresh.key.authority == issued.key.authority
        clock.pass_ms(86_400_000)
        assert [await counts(here, one) for one in (issued, fresh)] == [False, False]

    async def test_one_whose_answer_was_lost_is_made_again_without_harm(
        self, here: AdminKeys
    ) -> None:
        """The text in use stays valid; the unseen one ends."""
        in_use = await create(here)
        assert await counts(here, in_use)
        lost = await here.rotate(in_use.key.key_id, 24, BY)
        seen = await here.rotate(in_use.key.key_id, 24, BY)
        assert [await counts(here, one) for one in (in_use, lost, seen)] == [True, False, True]

    async def test_one_that_was_used_stays_for_the_grace(
        self, here: AdminKeys, there: AdminKeys
    ) -> None:
        """The second rotation ends the first text, and not the second, wherever it was used."""
        first = await create(here)
        second = await here.rotate(first.key.key_id, 24, BY)
        assert await counts(there, second)
        third = await here.rotate(first.key.key_id, 24, BY)
        assert [await counts(here, one) for one in (first, second, third)] == [False, True, True]

    async def test_of_two_at_one_moment_one_is_told(
        self, store: Store, clock: MovableClock
    ) -> None:
        """Else both would be shown a key, and one of them would not work."""
        barrier = asyncio.Barrier(2)
        meeting = Overtaken(store, lambda _: barrier.wait())
        racers = [keys_of(meeting, clock) for _ in range(2)]
        issued = await create(keys_of(store, clock))
        rotations = [one.rotate(issued.key.key_id, 24, BY) for one in racers]
        results = await asyncio.gather(*rotations, return_exceptions=True)
        assert {type(one) for one in results} == {IssuedKey, ConflictError}
        (won,) = [one for one in results if isinstance(one, IssuedKey)]
        assert [await counts(racers[0], one) for one in (issued, won)] == [True, True]

    async def test_a_new_pepper_takes_over_when_a_key_is_used(
        self, store: Store, clock: MovableClock
    ) -> None:
        """Both texts, and then the old pepper can be dropped."""
        old = keys_of(store, clock, OLD_PEPPER)
        first = await create(old)
        second = await old.rotate(first.key.key_id, 24, BY)
        both = keys_of(store, clock, NEW_PEPPER, OLD_PEPPER)
        for one in (first, second, first, second):
            assert await counts(both, one)
        clock.pass_ms(HALF_A_MINUTE_MS)
        new = keys_of(store, clock, NEW_PEPPER)
        assert [await counts(new, one) for one in (first, second)] == [True, True]


class TestUse:
    async def test_it_is_noted_seldom(
        self, here: AdminKeys, clock: MovableClock, meter: StoreMeter
    ) -> None:
        """One write in ten minutes, and one read in half a minute, however often it is used."""
        issued = await create(here)
        calls = meter.calls
        reads, writes = calls["get"], calls["update"]
        for _ in range(100):
            assert await counts(here, issued)
        assert (calls["get"] - reads, calls["update"] - writes) == (1, 1)
        noted_at_epoch = clock.now_ms() // 1000
        for _ in range(20):
            clock.pass_ms(HALF_A_MINUTE_MS)
            assert await counts(here, issued)
        assert (calls["get"] - reads, calls["update"] - writes) == (21, 2)
        (found,) = [
            key
            for key in (await here.list_keys(ALL_ORGS, None, 1000)).entries
            if key.key_id == issued.key.key_id
        ]
        assert found.last_used_at_epoch is not None
        assert 0 <= found.last_used_at_epoch - noted_at_epoch - LAST_USED_SECS <= 30

    async def test_requests_at_one_moment_share_a_read_and_a_write(
        self, here: AdminKeys, meter: StoreMeter
    ) -> None:
        issued = await create(here)
        reads, writes = meter.calls["get"], meter.calls["update"]
        assert all(await asyncio.gather(*(counts(here, issued) for _ in range(50))))
        assert (meter.calls["get"] - reads, meter.calls["update"] - writes) == (1, 1)

    async def test_a_note_that_can_not_be_written_keeps_nobody_out(
        self, store: Store, here: AdminKeys, clock: MovableClock
    ) -> None:
        """And it is tried again when the key is read the next time."""
        issued, turns = await create(here), Interleaving(1)
        faulty = FaultyStore(store, turns, REFUSED)
        keys = keys_of(faulty, clock)

        async def use() -> list[bool]:
            return [await counts(keys, issued) for _ in range(3)]

        assert await turns.run(use()) == [[True, True, True]]
        assert faulty.befell["refused"] == 1
        clock.pass_ms(HALF_A_MINUTE_MS)
        assert await counts(keys, issued)
        item = await stored(store, CONFIG, item_key(issued.key.key_id))
        assert item["last_used_at_epoch"] == clock.now_ms() // 1000

    async def test_a_store_that_can_not_be_read_lets_nobody_in(
        self, store: Store, here: AdminKeys, clock: MovableClock
    ) -> None:
        """The caller gets the error, and answers 503."""
        issued, turns = await create(here), Interleaving(1)
        keys = keys_of(FaultyStore(store, turns, Faults(refused_pct=100)), clock)
        (told,) = await turns.run(counts(keys, issued))
        assert isinstance(told, StoreUnavailableError)


class TestGiving:
    async def test_a_key_of_some_organisations_gives_keys_of_these(self, here: AdminKeys) -> None:
        mine, other = new_org_id(), new_org_id()
        authority = (await create(here, coverage=Coverage(frozenset({mine})))).key.authority
        given = await create(here, coverage=only(mine), authority=authority)
        assert given.key.coverage == only(mine)
        for beyond in (ALL_ORGS, only(other), Coverage(frozenset({mine, other}))):
            with pytest.raises(NotPermittedError, match="org_ids"):
                await create(here, coverage=beyond, authority=authority)

    async def test_nobody_gives_a_higher_role(self, here: AdminKeys) -> None:
        """The gate asks for an ADMIN already; this does not rely on it."""
        operator = (await create(here, role=Role.OPERATOR)).key.authority
        with pytest.raises(NotPermittedError, match="role"):
            await create(here, role=Role.ADMIN, authority=operator)
        assert (await create(here, role=Role.VIEWER, authority=operator)).key.role is Role.VIEWER

    async def test_what_is_given_does_not_outlive_the_giver(
        self, here: AdminKeys, clock: MovableClock
    ) -> None:
        """Else a key for a day would be one for ever. Who does not say gets the same end."""
        end = clock.now_ms() // 1000 + 86_400
        authority = (await create(here, expires_at_epoch=end)).key.authority
        assert (await create(here, authority=authority)).key.expires_at_epoch == end
        sooner = await create(here, expires_at_epoch=end - 1, authority=authority)
        assert sooner.key.expires_at_epoch == end - 1
        with pytest.raises(NotPermittedError, match="expires_at"):
            await create(here, expires_at_epoch=end + 1, authority=authority)

    async def test_keys_beyond_ones_own_organisations_do_not_exist(self, here: AdminKeys) -> None:
        """They are not listed, and can't be told from keys that never were."""
        mine, other = new_org_id(), new_org_id()
        own = await create(here, coverage=only(mine))
        both = await create(here, coverage=Coverage(frozenset({mine, other})))
        by = replace(BY, authority=own.key.authority)
        of_all = await create(here)
        assert await ids_of(here, only(mine)) == [own.key.key_id]
        for key_id in (both.key.key_id, of_all.key.key_id, "0" * 12, "x", "../../x"):
            with pytest.raises(NotFoundError):
                await here.delete(key_id, by)
            with pytest.raises(NotFoundError):
                await here.rotate(key_id, 1, by)
        assert all([await counts(here, one) for one in (own, both, of_all)])


class TestRoots:
    async def test_they_are_admins_of_everything(
        self, store: Store, here: AdminKeys, clock: MovableClock
    ) -> None:
        before = {key.key_id for key in await list_roots(store)}
        await create(here, role=Role.OPERATOR)
        await create(here, coverage=only(new_org_id()))
        root = await create(here, expires_at_epoch=clock.now_ms() // 1000 + 1)
        clock.pass_ms(2_000)
        (found,) = [key for key in await list_roots(store) if key.key_id not in before]
        assert found.key_id == root.key.key_id
        assert found.has_ended(clock.now_ms() // 1000)

    async def test_an_item_that_makes_no_sense_concerns_its_own_key(
        self, store: Store, here: AdminKeys
    ) -> None:
        """It opens nothing, and the others are listed."""
        good, bad = await create(here), await create(here)
        for change in (Set("role", "OWNER"), Set("org_ids", "all"), Set(HASH, 5)):
            await store.update(Update(CONFIG, item_key(bad.key.key_id), (change,)))
            listed = await ids_of(here)
            assert good.key.key_id in listed
            assert bad.key.key_id not in listed
        assert await counts(here, good)


@pytest.mark.parametrize("name", ["", "  ", "a/b", "a\nb", "a\x1b[31m", "x" * 65])
def test_a_name_is_a_line_for_people(name: str) -> None:
    """Without a slash, which is between name and id where an actor is written down."""
    with pytest.raises(InvalidValueError, match="name"):
        parse_key_name(name)
    assert parse_key_name("  Ärger & Söhne  ") == "Ärger & Söhne"
