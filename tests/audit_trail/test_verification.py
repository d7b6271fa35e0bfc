"""Verification finds every change to the entries of a chain."""

import hashlib
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from attribution import BY
from audit_trail.conftest import a_change, entries_of, findings
from pricekeeper.audit import AuditTrail
from pricekeeper.audit import items as trail_items
from pricekeeper.audit.entry import TrailEntry, canonical_bytes, chain_of, head_after
from pricekeeper.audit.verification import FINDINGS_MAX, ChainReport, TrailVerifier
from pricekeeper.errors import InvalidValueError
from pricekeeper.storage import Delete, Item, Key, Put, Set, Store, Update
from pricekeeper.storage.tables import AUDIT_TRAIL, CONFIG
from pricekeeper.values import OrgId
from stores import ShiftedClock, stored
from tenants.conftest import new_org_id

DAY_MS = 86_400_000


class Tampering:
    """An attacker with the keys to the store."""

    def __init__(self, store: Store, clock: ShiftedClock, org_id: OrgId | None) -> None:
        self._store = store
        self._clock = clock
        self.org_id = org_id
        self.chain = chain_of(org_id)

    @property
    def verifier(self) -> TrailVerifier:
        return TrailVerifier(self._store, self._clock)

    async def report(self) -> ChainReport:
        (report,) = await self.verifier.verify(self.chain)
        return report

    async def findings(self) -> list[str]:
        return await findings(self._store, self._clock, self.org_id)

    async def entries(self) -> list[TrailEntry]:
        return await entries_of(self._store, self.org_id)

    async def lines(self) -> list[bytes]:
        return [line async for line in self.verifier.export(self.chain)]

    async def refusal(self, lines: list[bytes]) -> str:
        with pytest.raises(InvalidValueError) as refused:
            await self.verifier.compare_lines(lines)
        assert refused.value.field == "against"
        return str(refused.value)

    async def compare(self, lines: list[bytes]) -> list[str]:
        compared = await self.verifier.compare_lines(lines)
        assert compared.lines == len(lines)
        return [f"{one.seq}: {one.problem}" for one in compared.findings]

    def key(self, seq: int) -> Key:
        return trail_items.entry_key(self.chain, seq)

    async def read(self, seq: int) -> Item:
        return await stored(self._store, AUDIT_TRAIL, self.key(seq))

    async def entry(self, seq: int) -> TrailEntry:
        return trail_items.entry_from(await self.read(seq))

    async def remove(self, *seqs: int) -> None:
        for seq in seqs:
            await self._store.delete(Delete(AUDIT_TRAIL, self.key(seq)))

    async def unlist(self, *seqs: int) -> None:
        for seq in seqs:
            key = trail_items.listed_key((await self.entry(seq)).id)
            await self._store.delete(Delete(AUDIT_TRAIL, key))

    async def set(self, seq: int, name: str, value: str | int) -> None:
        await self._store.update(Update(AUDIT_TRAIL, self.key(seq), (Set(name, value),)))

    async def replace(self, seq: int, **changes: object) -> TrailEntry:
        changed = msgspec.structs.replace(await self.entry(seq), **changes)
        await self.set(seq, "entry", canonical_bytes(changed).decode())
        return changed

    async def put_head(self, entry: TrailEntry) -> None:
        head = head_after(entry)
        await self._store.update(
            Update(
                AUDIT_TRAIL,
                trail_items.head_key(self.chain),
                (Set("seq", head.seq), Set("hash", head.hash)),
            )
        )

    async def swap(self, one: int, two: int) -> None:
        first, second = await self.read(one), await self.read(two)
        await self._store.put(Put(AUDIT_TRAIL, {**first, "SK": second["SK"]}))
        await self._store.put(Put(AUDIT_TRAIL, {**second, "SK": first["SK"]}))

    async def copy(self, seq: int, sort_key: str) -> None:
        await self._store.put(Put(AUDIT_TRAIL, {**await self.read(seq), "SK": sort_key}))

    async def rewrite_from(self, seq: int, last: int) -> None:
        """Change an entry, and every one after it so that it fits."""
        changed = await self.replace(seq, reason="nothing happened")
        for later in range(seq + 1, last + 1):
            changed = await self.replace(later, previous=head_after(changed).hash)
        await self.put_head(changed)

    async def cut(self, keep: int, last: int, *, with_list: bool) -> None:
        """Take the last entries away, and let the head end before them."""
        gone = range(keep + 1, last + 1)
        if with_list:
            await self.unlist(*gone)
        await self.remove(*gone)
        await self.put_head(await self.entry(keep))

    async def remove_head(self) -> None:
        await self._store.delete(Delete(AUDIT_TRAIL, trail_items.head_key(self.chain)))

    async def remove_all(self, last: int) -> None:
        await self.remove(*range(1, last + 1))
        await self.remove_head()


async def forget_beginning(store: Store, org_id: OrgId | None) -> None:
    """Remove what the configuration says about the chain, as an operator may."""
    await store.delete(Delete(CONFIG, trail_items.beginning_key(chain_of(org_id))))


@pytest.fixture
def empty(store: Store, clock: ShiftedClock, org_id: OrgId) -> Tampering:
    return Tampering(store, clock, org_id)


@pytest.fixture
async def chain(trail: AuditTrail, empty: Tampering, org_id: OrgId) -> Tampering:
    """Make a chain of six entries."""
    for number in range(1, 7):
        await trail.apply(BY, a_change(org_id, f"thing {number}", after={"n": number}), ())
    return empty


async def test_what_nobody_touched_is_as_it_was_written(
    chain: Tampering,
) -> None:
    """The report says where the chain ends, to be kept elsewhere."""
    report = await chain.report()
    assert (report.entries, report.first_seq, report.last_seq) == (6, 1, 6)
    assert report.findings == []
    last = (await chain.entries())[-1]
    assert report.last_hash == hashlib.sha256(canonical_bytes(last)).hexdigest()


Tamper = Callable[[Tampering], Awaitable[object]]


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (
            lambda on: on.replace(3, reason="another"),
            "3: does not have the hash that entry 4 states",
        ),
        (lambda on: on.replace(3, at_ms=5), "3: does not have the hash that entry 4 states"),
        (lambda on: on.replace(6, actor="x"), "6: is not the entry that the head of the chain"),
        (lambda on: on.replace(1, previous="x"), "0: does not have the hash that entry 1 states"),
        (lambda on: on.remove(1), "1: was removed, with all up to 1"),
        (lambda on: on.remove(1, 2), "1: was removed, with all up to 2"),
        (lambda on: on.remove(3, 4), "3: was removed, with all up to 4"),
        (lambda on: on.remove(6), "6: the entries after 5 were removed"),
        (lambda on: on.remove(*range(1, 7)), "6: the entries after 0 were removed"),
        (lambda on: on.swap(2, 3), "2: is entry 3 of ORG#"),
        (lambda on: on.copy(6, f"{7:012}"), "7: is entry 6 of ORG#"),
        (lambda on: on.copy(6, "6"), "6: is under the key '6', where no entry belongs"),
        (lambda on: on.copy(6, f"{6:013}"), "6: is under the key '0000000000006'"),
        (lambda on: on.copy(3, f"{3:012} "), "3: is under the key '000000000003 '"),
        (lambda on: on.copy(3, "copy"), "3: is under the key 'copy'"),
        (lambda on: on.set(4, "entry", "{}"), "4: can't be read"),
        (lambda on: on.set(4, "entry", 7), "4: can't be read"),
        (lambda on: on.set(4, "expires_at_epoch", 2**40), "4: does not expire at the time"),
        (lambda on: on.set(4, "expires_at_epoch", 1), "4: was removed, with all up to 4"),
        (lambda on: on.unlist(5), "5: is not in the list of all changes"),
        (lambda on: on.cut(4, 6, with_list=False), "5: was removed, but is still in the list"),
        (lambda on: on.remove_head(), "6: the head of the chain states 0 as the last entry"),
        (lambda on: on.remove_all(6), "1: was removed, but is still in the list"),
    ],
)
async def test_what_was_done_to_it_is_found(chain: Tampering, tamper: Tamper, told: str) -> None:
    """An entry that was changed, removed, put elsewhere, hidden or let expire."""
    await tamper(chain)
    found = await chain.findings()
    assert any(one.startswith(told) for one in found), found


async def test_an_entry_of_another_chain_is_found(
    store: Store,
    trail: AuditTrail,
    chain: Tampering,
) -> None:
    for _ in range(3):
        await trail.apply(BY, a_change(None), ())
    other = await stored(store, AUDIT_TRAIL, trail_items.entry_key("DEPLOYMENT", 3))
    await store.put(Put(AUDIT_TRAIL, {**other, "PK": chain.key(3).pk}))
    found = await chain.findings()
    assert any("of DEPLOYMENT, in another place" in one for one in found), found


class TestErasedChains:
    """A chain without items in the table is still known in Config."""

    async def erase(self, chain: Tampering, last: int = 6) -> None:
        await chain.unlist(*range(1, last + 1))
        await chain.remove_all(last)

    @pytest.mark.parametrize("of_deployment", [False, True])
    async def test_a_whole_chain_that_was_removed_is_found(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, of_deployment: bool
    ) -> None:
        """By its name, and among all of them."""
        owner = None if of_deployment else new_org_id()
        told = "0: all of the chain was removed, with its head"
        chain = Tampering(store, clock, owner)
        before = len(await chain.entries())
        for _ in range(2):
            await trail.apply(BY, a_change(owner), ())
        assert await chain.findings() == []
        await self.erase(chain, before + 2)
        assert await chain.findings() == [told]
        reports = await chain.verifier.verify()
        (report,) = [one for one in reports if one.chain == chain.chain]
        assert [one.problem for one in report.findings] == [told.removeprefix("0: ")]
        await forget_beginning(store, owner)  # the chain of the deployment is everybody's

    async def test_a_chain_that_was_begun_anew_is_found(
        self, trail: AuditTrail, org_id: OrgId, chain: Tampering
    ) -> None:
        """The next change would else hide that there was anything before."""
        await self.erase(chain)
        for _ in range(2):
            await trail.apply(BY, a_change(org_id), ())
        assert [entry.seq for entry in await chain.entries()] == [1, 2]
        told = "1: the chain was begun 2 times, so an earlier one was removed"
        assert await chain.findings() == [told]

    async def test_a_chain_without_entries_has_no_findings(self, empty: Tampering) -> None:
        """The report says that the store does not know the chain."""
        report = await empty.report()
        assert (report.entries, report.is_known, report.findings) == (0, False, [])


class TestExports:
    async def test_anybody_can_verify_an_export(self, chain: Tampering) -> None:
        """Each line names the SHA-256 of the line before."""
        lines = await chain.lines()
        assert len(lines) == 6
        before = ""
        for line in lines:
            assert json.loads(line)["previous"] == before
            before = hashlib.sha256(line).hexdigest()

    @pytest.mark.parametrize("sort_key", ["6", f"{6:013}", f"{6:012}x"])
    async def test_a_copy_under_another_key_is_not_exported(
        self, chain: Tampering, sort_key: str
    ) -> None:
        """Each entry is in the file once, unchanged."""
        lines = await chain.lines()
        await chain.copy(6, sort_key)
        assert await chain.lines() == lines
        report = await chain.report()
        assert (report.entries, report.last_seq, len(report.findings)) == (6, 6, 1)

    @pytest.mark.parametrize(
        ("tamper", "told"),
        [
            (
                lambda on: on.rewrite_from(3, 6),
                [f"{n}: differs from the exported entry" for n in "3456"],
            ),
            (lambda on: on.cut(4, 6, with_list=True), ["5: was removed", "6: was removed"]),
        ],
        ids=["rewritten", "cut"],
    )
    async def test_what_fits_again_is_found_against_an_export(
        self,
        chain: Tampering,
        tamper: Tamper,
        told: list[str],
    ) -> None:
        """An attacker who can write everything can make a chain that fits, but another one."""
        lines = await chain.lines()
        await tamper(chain)
        assert await chain.findings() == []
        assert await chain.compare([line + b"\n" for line in lines]) == told

    async def test_what_was_not_touched_agrees_also_when_it_has_expired(
        self, clock: ShiftedClock, trail: AuditTrail, chain: Tampering, org_id: OrgId
    ) -> None:
        lines = await chain.lines()
        await trail.apply(BY, a_change(org_id), ())
        assert await chain.compare(lines) == []
        clock.shift_ms = 401 * DAY_MS
        assert await chain.compare(lines) == []

    @pytest.mark.parametrize("lines", [[], [b"\n", b"  \n"]], ids=["nothing", "blank"])
    async def test_an_empty_file_is_refused(self, empty: Tampering, lines: list[bytes]) -> None:
        assert "is empty" in await empty.refusal(lines)

    async def test_another_file_is_refused(self, chain: Tampering) -> None:
        """And the line is named, also behind more blank ones than are read at once."""
        assert "line 1" in await chain.refusal([b"hello\n"])
        lines = await chain.lines()
        assert "line 207" in await chain.refusal([*lines, *[b"\n"] * 200, b"{}"])

    @pytest.mark.parametrize(
        ("edit", "told"),
        [
            (lambda lines: lines[1:], "line 1: entry 1 of ORG#{} is missing before it"),
            (lambda lines: lines[:1] + lines[2:], "line 2: entry 2 of ORG#{} is missing before it"),
            (lambda lines: lines[:2] + lines[4:], "line 3: entry 4 of ORG#{} is missing before it"),
            (lambda lines: [*lines, lines[-1]], "line 7: entry 6 of ORG#{} does not follow"),
            (lambda lines: lines[::-1], "line 1: entry 5 of ORG#{} is missing before it"),
            (
                lambda lines: [*lines[:2], lines[2].replace(b"thing 3", b"thing 0"), *lines[3:]],
                "line 4: it does not name the hash of the line before",
            ),
        ],
        ids=["first", "second", "two", "twice", "reversed", "changed"],
    )
    async def test_a_file_with_a_gap_is_refused(
        self,
        chain: Tampering,
        org_id: OrgId,
        edit: Callable[[list[bytes]], list[bytes]],
        told: str,
    ) -> None:
        """The missing lines are not compared, so it would prove nothing."""
        lines = edit(await chain.lines())
        assert told.format(org_id) in await chain.refusal(lines)

    async def test_a_gap_is_found_in_each_of_several_chains(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, chain: Tampering
    ) -> None:
        other = new_org_id()
        for _ in range(150):
            await trail.apply(BY, a_change(other), ())
        both = await chain.lines()
        both += await Tampering(store, clock, other).lines()
        assert await chain.compare(both) == []
        told = await chain.refusal(both[:130] + both[131:])
        assert f"line 131: entry 125 of ORG#{other} is missing before it" in told
        told = await chain.refusal([*both, both[0]])
        assert f"line 157: entry 1 of {chain.chain} does not follow" in told


class TestExpiry:
    async def test_a_chain_without_its_oldest_entries_is_whole(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, org_id: OrgId, empty: Tampering
    ) -> None:
        """Each day an entry, and after a while the first ones are gone, and at last all."""
        short = AuditTrail(store, clock, retention_days=5)
        for day in range(10):
            clock.shift_ms = day * DAY_MS
            await short.apply(BY, a_change(org_id), ())
            assert await empty.findings() == []
        seqs = [entry.seq for entry in await empty.entries()]
        assert seqs == [6, 7, 8, 9, 10]
        clock.shift_ms = 20 * DAY_MS
        assert await empty.entries() == []
        assert await empty.findings() == []
        await trail.apply(BY, a_change(org_id), ())
        assert [entry.seq for entry in await empty.entries()] == [11]
        assert await empty.findings() == []

    async def test_a_shorter_retention_leaves_no_gap(
        self, store: Store, clock: ShiftedClock, org_id: OrgId, empty: Tampering
    ) -> None:
        """A longer retention of one entry also keeps the later ones."""
        for retention_days in (30, 2, 2):
            trail = AuditTrail(store, clock, retention_days=retention_days)
            await trail.apply(BY, a_change(org_id), ())
        clock.shift_ms = 10 * DAY_MS
        assert [entry.seq for entry in await empty.entries()] == [1, 2, 3]
        assert await empty.findings() == []

    async def test_an_entry_that_was_removed_before_its_time_is_found(
        self, store: Store, clock: ShiftedClock, org_id: OrgId, empty: Tampering
    ) -> None:
        """Although those before it are gone by right."""
        trail = AuditTrail(store, clock, retention_days=5)
        for day in range(8):
            clock.shift_ms = day * DAY_MS
            await trail.apply(BY, a_change(org_id), ())
        oldest = (await empty.entries())[0].seq
        await empty.remove(oldest)
        found = await empty.findings()
        assert any(f"was removed, with all up to {oldest}" in one for one in found), found


async def test_many_entries_and_many_findings_are_read_page_by_page(
    trail: AuditTrail, org_id: OrgId, empty: Tampering
) -> None:
    """Findings have a bound, and the rest is counted."""
    count = 2 * FINDINGS_MAX + 30
    for _ in range(count):
        await trail.apply(BY, a_change(org_id), ())
    assert await empty.findings() == []
    for seq in range(1, count + 1):
        await empty.set(seq, "entry", "{}")
    report = await empty.report()
    assert (len(report.findings), report.entries) == (FINDINGS_MAX, count)
    assert report.findings_more >= count - FINDINGS_MAX
