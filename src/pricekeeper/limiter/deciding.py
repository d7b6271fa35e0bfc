"""Decides for all commands that wait which one write carries them, or what is to be read first.

Pure: no store, no clock. `decide` looks at what is known of a batch and at its commands in
the order of their arrival. Changes of leases come first, because they are not denied and may give
tokens back. Then as many acquires are served as there are tokens for; what is too big does not
keep the smaller ones out. What can't go into this write stays for the next one.

A write is planned from what was last seen, and the store refuses it if that was wrong. Nobody is
denied, and no adjustment is cut, by what was merely remembered: the store has to say so, to this
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from pricekeeper.errors import InvalidValueError, PriceKeeperError, Violation
from pricekeeper.limiter.bucket import Bucket, Debit, Denial, Plan, guess, overdue, plan, probe
from pricekeeper.limiter.commands import Acquire, Command, LeaseChange, Outcome, keys_of
from pricekeeper.limiter.draft import BucketDraft, total_of
from pricekeeper.limiter.items import LeaseRecord
from pricekeeper.limiter.limits import Limit
from pricekeeper.limiter.records import (
    adjusted_record,
    capacities_of,
    check_change,
    check_held,
    grant_put,
    is_known,
    record_update,
    released_record,
)
from pricekeeper.limiter.writes import refill_update, take_update
from pricekeeper.storage import Key, Put, Update

Reading: TypeAlias = Callable[[Key, Bucket | None], int]
"""A time in milliseconds for the bucket at that key."""


class BatchView:
    """The buckets and lease records of a batch, as far as they are known."""

    def __init__(self, reading_ms: Reading, waited_ms: Reading) -> None:
        """Know nothing yet. One reading of the clocks counts for the whole batch.

        With a later one for each step, what refills meanwhile would be handed out in a write of
        its own, again and again. ``waited_ms`` is the time since that reading.
        """
        self.buckets: dict[Key, Bucket | None] = {}
        """A key that is not here was never seen; ``None`` is an absent bucket."""
        self.records: dict[Key, LeaseRecord] = {}
        """Of the leases that are to be changed."""
        self.fresh: set[Key] = set()
        """What was read since the batch began; all else is from memory."""
        self._reading_ms = reading_ms
        self._waited_ms = waited_ms

    def reading_ms(self, key: Key) -> int:
        """The time that counts for that bucket, by the reading of the batch."""
        return self._reading_ms(key, self.buckets.get(key))

    def waited_ms(self, key: Key) -> int:
        """How much time has passed for that bucket since the reading."""
        return self._waited_ms(key, self.buckets.get(key))

    def plan(self, debit: Debit) -> Plan:
        """The write that applies the debit to its bucket, or the denial of it."""
        return plan(self.buckets[debit.key], debit, self.reading_ms(debit.key))


class Answered(msgspec.Struct, frozen=True):
    """Commands that need no write, each with its outcome or its error."""

    answers: list[tuple[Command, Outcome | PriceKeeperError]]


class ReadStep(msgspec.Struct, frozen=True):
    """What has to be read before anything more can be decided."""

    buckets: list[Key]
    records: list[Key]


class Part(msgspec.Struct, frozen=True):
    """One item of a write: a bucket or the record of a lease, as it is afterwards."""

    key: Key
    operation: Put | Update
    bucket: Bucket | None = None
    """``None`` for a bucket that was never seen: only the store knows what it holds then."""
    record: LeaseRecord | None = None


class CombinedWrite(msgspec.Struct, frozen=True):
    """One write and whom it serves. It may serve nobody, if only a bucket is brought up to date."""

    parts: list[Part]
    acquires: Sequence[Acquire] = ()
    changes: Sequence[tuple[LeaseChange, Outcome]] = ()
    cuts: int = 0
    """Adjustments of which less is taken than was asked for."""


Decision: TypeAlias = Answered | ReadStep | CombinedWrite


def decide(view: BatchView, commands: Sequence[Command]) -> Decision:
    """The next step for these commands, at least one."""
    acquires = [one for one in commands if isinstance(one, Acquire)]
    drafts = _Drafts(view)
    for one in commands:
        if isinstance(one, LeaseChange):
            drafts.add_change(one)
    if drafts.answers:
        return Answered(drafts.answers)
    if any(debit.key not in view.buckets for one in acquires for debit in one.debits):
        if len(acquires) == len(commands) and _is_plain(acquires):
            return _guessed_write(view, acquires)
        return _read_step(acquires, drafts.unsure)
    drafts.add_acquires(acquires)
    if drafts.acquires or drafts.changes:
        return drafts.combined_write()
    if drafts.unsure or not all(view.fresh.issuperset(keys_of(one)) for one in acquires):
        return _ask_step(view, acquires, drafts.unsure)
    return _settling_write(view, acquires[0]) or Answered(_denials(view, acquires))


class _Drafts:
    """Every item that one write touches, each once."""

    def __init__(self, view: BatchView) -> None:
        self._view = view
        self._buckets: dict[Key, BucketDraft] = {}
        self._records: dict[Key, LeaseRecord] = {}
        """The records that are changed, after the write."""
        self._cuts = 0
        self.answers: list[tuple[Command, Outcome | PriceKeeperError]] = []
        self.unsure: list[Key] = []
        """Records that have to be read before a change of them may be refused."""
        self.acquires: list[Acquire] = []
        self.changes: list[tuple[LeaseChange, Outcome]] = []

    def add_change(self, change: LeaseChange) -> None:
        """Add a change, or its answer if it needs no write, or leave it for the next write."""
        if change.record is None:
            if (taken := self._move(change, change.delta)) is not None:
                self.changes.append((change, taken))
            return
        key = change.record.key
        record = self._records.get(key) or self._view.records[key]
        try:
            delta = self._delta_of(change, record)
        except PriceKeeperError as error:
            if key not in self._records:  # else it is decided once that is written
                self.answers.append((change, error))
            return
        if delta is None:
            if key not in self._records and key not in self.unsure:
                self.answers.append((change, record))
            return
        if (taken := self._move(change, delta)) is not None:
            after = (
                released_record(record)
                if change.mark is None
                else adjusted_record(record, taken, change.mark)
            )
            self._records[key] = after
            self.changes.append((change, after))

    def add_acquires(self, acquires: Sequence[Acquire]) -> None:
        """Add all acquires that there is enough for, in the order of their arrival."""
        candidates = self._candidates(acquires)
        totals = _totals(candidates)
        if candidates and not self._denies(totals):
            self.acquires = candidates
        else:
            totals = {}
            for one in candidates:
                more = {
                    key: total_of([totals[key], debit] if key in totals else [debit])
                    for debit in one.debits
                    if (key := debit.key)
                }
                if not self._denies(more):
                    totals |= more
                    self.acquires.append(one)
        for debit in totals.values():
            self._draft(debit).take(debit)

    def combined_write(self) -> CombinedWrite:
        """All of it as one write, which has no parts if there is nothing to write."""
        parts = []
        for key, draft in self._buckets.items():
            written = draft.operation()
            if written is not None:
                parts.append(Part(key, written[0], bucket=written[1]))
        records = [one.record for one in self.acquires if one.record is not None]
        parts.extend(Part(record.key, grant_put(record), record=record) for record in records)
        for key, after in self._records.items():
            before = self._view.records[key]
            parts.append(Part(key, record_update(before, after), record=after))
        return CombinedWrite(parts, self.acquires, self.changes, self._cuts)

    def _delta_of(self, change: LeaseChange, record: LeaseRecord) -> Mapping[str, int] | None:
        """What the change takes from the buckets; ``None`` if it is not to be written now.

        Then it was applied before, or the record is ``unsure``. Raises if it can't be applied.
        """
        if change.mark is None:
            back = {name: -tokens for name, tokens in record.held.items()}
            return None if record.released else back
        if is_known(record, change.mark):
            return None
        check_change(record, change.delta)
        try:
            check_held(change.delta, record.held, capacities_of(change.debits))
        except InvalidValueError:
            if record.key in self._view.fresh or record.key in self._records:
                raise
            self.unsure.append(record.key)  # others may have changed what it holds
            return None
        return change.delta

    def _move(self, change: LeaseChange, delta: Mapping[str, int]) -> dict[str, int] | None:
        """Adjust the buckets of a lease; what is taken is what every bucket can bear.

        ``None`` if it can't go into the same write as the adjustments that are here.
        """
        debits = [one for one in debits_of(change.debits, delta) if one.tokens]
        drafts = [self._draft(one) for one in debits]
        if not all(draft.can_adjust(one) for draft, one in zip(drafts, debits, strict=True)):
            return None
        taken = dict(delta)
        for draft, debit in zip(drafts, debits, strict=True):
            for name, most in draft.bearable(debit).items():
                taken[name] = min(taken[name], most)
        for draft, debit in zip(drafts, debits, strict=True):
            draft.adjust(debit, taken)
        self._cuts += taken != delta
        return taken

    def _candidates(self, acquires: Sequence[Acquire]) -> list[Acquire]:
        """The acquires that may share a write: one for each lease, and with the same limits."""
        names, limits = set(self._records), dict[Key, Mapping[str, Limit]]()
        candidates = []
        for one in acquires:
            if one.record is not None:
                if one.record.key in names:
                    continue
                names.add(one.record.key)
            if all(limits.setdefault(d.key, d.limits) == d.limits for d in one.debits):
                candidates.append(one)
        return candidates

    def _denies(self, totals: Mapping[Key, Debit]) -> bool:
        return any(isinstance(self._draft(one).plan(one), Denial) for one in totals.values())

    def _draft(self, debit: Debit) -> BucketDraft:
        key, view = debit.key, self._view
        draft = self._buckets.get(key)
        if draft is None:
            draft = self._buckets[key] = BucketDraft(
                debit,
                view.buckets.get(key),
                seen=key in view.buckets,
                is_fresh=key in view.fresh,
                reading_ms=view.reading_ms(key),
            )
        return draft


def debits_of(debits: Sequence[Debit], tokens: Mapping[str, int]) -> list[Debit]:
    """The same buckets, debited by these tokens as far as each has such a limit."""
    return [
        debit.with_tokens({name: n for name, n in tokens.items() if n and name in debit.limits})
        for debit in debits
    ]


def _totals(acquires: Sequence[Acquire]) -> dict[Key, Debit]:
    """What these acquires take from each bucket, together."""
    debits: dict[Key, list[Debit]] = {}
    for one in acquires:
        for debit in one.debits:
            debits.setdefault(debit.key, []).append(debit)
    return {key: total_of(some) for key, some in debits.items()}


def _is_plain(acquires: Sequence[Acquire]) -> bool:
    """Whether one update of one bucket can serve them; then the store returns the bucket."""
    keys = {debit.key for one in acquires for debit in one.debits}
    return len(keys) == 1 and all(one.record is None for one in acquires)


def _guessed_write(view: BatchView, acquires: Sequence[Acquire]) -> CombinedWrite:
    """The first write to a bucket that was never seen; a refusal returns it."""
    first = acquires[0].debits[0]
    served = [one for one in acquires if one.debits[0].limits == first.limits]
    [(key, total)] = _totals(served).items()
    operation = take_update(total, guess(total, view.reading_ms(key)))
    return CombinedWrite([Part(key, operation)], served)


def _ask_step(view: BatchView, acquires: Sequence[Acquire], records: Sequence[Key]) -> Decision:
    """Let the store say what this process only remembers, before anybody is denied.

    One bucket tells it when a write is refused, which costs no more than a read and may succeed.
    """
    if not records and _is_plain(acquires):
        [debit] = acquires[0].debits
        bucket, reading_ms = view.buckets[debit.key], view.reading_ms(debit.key)
        if bucket is not None and not overdue(bucket, reading_ms):
            operation = take_update(debit, probe(bucket, reading_ms))
            return CombinedWrite([Part(debit.key, operation)], acquires[:1])
    return _read_step(acquires, records)


def _read_step(acquires: Sequence[Acquire], records: Sequence[Key]) -> ReadStep:
    """All buckets of the acquires, and their leases: one of them may have been granted before."""
    named = [one.record.key for one in acquires if one.record is not None]
    return ReadStep(list(_totals(acquires)), list(dict.fromkeys([*named, *records])))


def _settling_write(view: BatchView, acquire: Acquire) -> CombinedWrite | None:
    """Bring buckets up to date whose limits have changed, so that the wait is right."""
    parts = []
    for debit in acquire.debits:
        step = view.plan(debit)
        if isinstance(step, Denial) and step.settle is not None:
            operation = refill_update(debit, step.settle)
            parts.append(Part(debit.key, operation, bucket=step.settle.after))
    return CombinedWrite(parts) if parts else None


def _denials(
    view: BatchView, acquires: Sequence[Acquire]
) -> list[tuple[Command, Outcome | PriceKeeperError]]:
    """The denials. What has nothing against it is left for the next step."""
    answers: list[tuple[Command, Outcome | PriceKeeperError]] = []
    for one in acquires:
        violations: list[Violation] = []
        for debit in one.debits:
            step = view.plan(debit)
            if isinstance(step, Denial):
                violations += step.after_waiting(view.waited_ms(debit.key)).violations
        if violations:
            answers.append((one, Denial(tuple(violations))))
    return answers
