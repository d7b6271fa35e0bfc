"""Random operations against a store and a plain dict: no divergence.

Hypothesis looks for a sequence of operations after which a store and the reference model
disagree about an answer, an error or an item.
"""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from contract.conftest import ALL_STORES
from contract.reference import Model, tag
from contract.strategies import (
    actions,
    attributes,
    certainly,
    condition,
    conditions,
    lifetimes,
    slots,
)
from pricekeeper.errors import (
    ConditionFailedError,
    InvalidOperationError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import (
    Action,
    Check,
    Delete,
    Item,
    Key,
    Put,
    Query,
    Update,
    Write,
    open_store,
)
from pricekeeper.storage.tables import SESSIONS
from stores import ShiftedClock

Answer: TypeAlias = tuple[str, Any]


class Divergence(RuleBasedStateMachine):
    """Does everything twice: on the store and on the model."""

    runner: asyncio.Runner
    location: StoreLocation

    def __init__(self) -> None:
        super().__init__()
        self.clock = ShiftedClock()
        self.start_ms = self.clock.now_ms()
        self.model = Model()
        self.pk = uuid.uuid4().hex
        self.store = self.runner.run(open_store(self.location, clock=self.clock))
        self.runner.run(self.store.create_tables())

    def teardown(self) -> None:
        self.runner.run(self.store.close())

    def key(self, slot: int) -> Key:
        return Key(self.pk, f"slot{slot}")

    def item(self, slot: int, attributes: dict[str, Any], lifetime: int | None) -> Item:
        item: Item = {"PK": self.pk, "SK": f"slot{slot}", **attributes}
        if lifetime is not None:
            item["expires_at_epoch"] = self.start_ms // 1000 + self.shift + lifetime
        return item

    @property
    def shift(self) -> int:
        return self.clock.shift_ms // 1000

    def compare(self, operation: Put | Update | Delete, words: Any) -> None:
        self.model.now = self.start_ms // 1000 + self.shift
        assert self.from_store(operation) == self.from_model(operation, words)

    def from_store(self, operation: Put | Update | Delete) -> Answer:
        try:
            match operation:
                case Put():
                    return "done", self.runner.run(self.store.put(operation))
                case Update():
                    return "done", tag(self.runner.run(self.store.update(operation)))
                case Delete():
                    old = self.runner.run(self.store.delete(operation))
                    return "done", tag(old)
        except ConditionFailedError as failure:
            return "failed", tag(failure.item)
        except InvalidOperationError:
            return "invalid", None

    def from_model(self, operation: Put | Update | Delete, words: Any) -> Answer:
        key = operation.key
        old = self.model.at(key)
        if self.model.refused(words, key):
            return "failed", tag(old)
        try:
            new = self.model.apply(operation)
        except InvalidOperationError:
            return "invalid", None
        self.model.keep(key, new)
        if isinstance(operation, Put):
            return "done", None
        return "done", tag(new if isinstance(operation, Update) else old)

    @rule(slot=slots, attributes=attributes, lifetime=lifetimes, words=conditions)
    def put(self, slot: int, attributes: dict[str, Any], lifetime: int | None, words: Any) -> None:
        item = self.item(slot, attributes, lifetime)
        self.compare(Put(SESSIONS, item, condition(words)), words)

    @rule(slot=slots, actions=actions, words=conditions)
    def update(self, slot: int, actions: tuple[Action, ...], words: Any) -> None:
        self.compare(Update(SESSIONS, self.key(slot), actions, condition(words)), words)

    @rule(slot=slots, words=conditions)
    def delete(self, slot: int, words: Any) -> None:
        self.compare(Delete(SESSIONS, self.key(slot), condition(words)), words)

    @rule(seconds=st.sampled_from([500, 1_500]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.shift_ms += seconds * 1000

    @rule(data=st.data())
    def transact(self, data: st.DataObject) -> None:
        self.model.now = self.start_ms // 1000 + self.shift
        chosen = data.draw(st.lists(slots, min_size=1, max_size=3, unique=True))
        operations: list[Write] = []
        failing: list[bool] = []
        for slot in chosen:
            words = data.draw(conditions)
            failing.append(self.model.refused(words, self.key(slot)))
            kind = data.draw(st.sampled_from(["put", "update", "delete", "check"]))
            if kind == "put":
                item = self.item(slot, data.draw(attributes), data.draw(lifetimes))
                operations.append(Put(SESSIONS, item, condition(words)))
            elif kind == "update":
                drawn = data.draw(actions)
                operations.append(Update(SESSIONS, self.key(slot), drawn, condition(words)))
            elif kind == "delete" or words is None:
                operations.append(Delete(SESSIONS, self.key(slot), condition(words)))
            else:
                operations.append(Check(SESSIONS, self.key(slot), certainly(words)))
        self.compare_transaction(operations, failing)

    def compare_transaction(self, operations: list[Write], failing: list[bool]) -> None:
        invalid, results = False, []
        for operation in operations:
            try:
                results.append(self.model.apply(operation))
            except InvalidOperationError:
                invalid = True
        try:
            self.runner.run(self.store.transact(operations))
        except InvalidOperationError:
            assert invalid
        except TransactionCancelledError as cancelled:
            got = [reason.code is ReasonCode.CONDITION_FAILED for reason in cancelled.reasons]
            assert got == failing
            for reason, operation in zip(cancelled.reasons, operations, strict=True):
                if reason.code is ReasonCode.CONDITION_FAILED:
                    assert tag(reason.item) == tag(self.model.at(operation.key))
        else:
            assert not invalid
            assert not any(failing)
            for operation, result in zip(operations, results, strict=True):
                if not isinstance(operation, Check):
                    self.model.keep(operation.key, result)

    @rule(descending=st.booleans(), limit=st.integers(1, 4))
    def read(self, descending: bool, limit: int) -> None:
        self.model.now = self.start_ms // 1000 + self.shift
        expected = [tag(self.model.at(self.key(slot))) for slot in range(4)]
        places = [(SESSIONS, self.key(slot)) for slot in range(4)]
        assert [tag(item) for item in self.runner.run(self.store.batch_get(places))] == expected
        alive = [item for item in expected if item[0] != "null"]
        query = Query(SESSIONS, self.pk, limit=limit, descending=descending)
        page = self.runner.run(self.store.query(query))
        in_order = alive[::-1] if descending else alive
        assert [tag(item) for item in page.items] == in_order[:limit]
        assert bool(page.after) == (len(alive) > limit)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("examples", [15, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ALL_STORES)
def test_no_sequence_of_operations_diverges(
    kind: str,
    examples: int,
    request: pytest.FixtureRequest,
    runner: asyncio.Runner,
    tmp_path: Path,
    table_prefix: str,
) -> None:
    """Every answer, every error and every item is the model's."""
    location: StoreLocation = SqliteLocation(MEMORY)
    if kind == "sqlite-file":
        location = SqliteLocation(str(tmp_path / "model.db"))
    elif kind != "sqlite-memory":
        endpoint: str = request.getfixturevalue(kind.replace("-", "_"))
        location = DynamoDbLocation("us-east-1", table_prefix, endpoint)
    machine = type("Machine", (Divergence,), {"runner": runner, "location": location})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
