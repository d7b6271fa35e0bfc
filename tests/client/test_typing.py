"""What a type checker sees of the keepers: parameters and results, as they are declared once.

mypy reads this as every other file (`make check`); an ignored error that is none is an error.
"""

import inspect
from typing import TYPE_CHECKING, Any, assert_type

import pytest
from msgspec import UnsetType

from pricekeeper.client import (
    Admin,
    Api,
    AsyncPriceKeeper,
    Authorization,
    Lease,
    PriceKeeper,
    Selection,
    Settled,
)
from pricekeeper.wire.authorizations import BudgetList
from pricekeeper.wire.provisioning import AppAnswer

if TYPE_CHECKING:

    def what_a_program_with_threads_sees(keeper: PriceKeeper) -> None:
        assert_type(keeper.authorize(1_000, 500, model="auto", hold_secs=60), Authorization)
        assert_type(keeper.capture("id", 1_000, 100, cache_read_tokens=1), Settled | None)
        assert_type(keeper.record("premium", 1_000, 100, tags={"a": "b"}), Settled | None)
        assert_type(keeper.select(), Selection)
        assert_type(keeper.acquire("premium", {"rpm": 1}), Lease)
        assert_type(keeper.void("id", reason="why"), None)
        assert_type(keeper.flush(), int)
        assert_type(keeper.budgets(), BudgetList)
        keeper.authorize("1_000", 500)  # type: ignore[arg-type]
        keeper.authorize(1_000)  # type: ignore[call-arg]
        keeper.authorize(1_000, 500, modle="auto")  # type: ignore[call-arg]
        keeper.capture("id", 1_000, 100, cached=1)  # type: ignore[call-arg]
        keeper.call(1_000, hold_secs="60")  # type: ignore[arg-type]

    async def what_a_program_with_a_loop_sees(keeper: AsyncPriceKeeper) -> None:
        assert_type(await keeper.authorize(1_000, 500, fallback=True), Authorization)
        assert_type(await keeper.capture("id", 1_000, 100), Settled | None)
        assert_type(await keeper.select(force_check=True), Selection)
        await keeper.authorize("1_000", 500)  # type: ignore[arg-type]
        await keeper.usage_records(labels="premium")  # type: ignore[call-arg]

    async def what_a_program_reads_of_answers(keeper: PriceKeeper, admin: Admin) -> None:
        """Every field of an answer has its type; a name that is not there is an error."""
        assert_type(keeper.budgets().budgets[0].remaining_usd_micros, int)
        assert_type(keeper.usage().models["premium"].quota_pct, float)
        assert_type(keeper.limits().resources["premium"]["rpm"].remaining, int)
        assert_type(keeper.usage_records().records[0].tags, dict[str, str])
        assert_type(keeper.authorization("id").cost_usd_micros, int | UnsetType)
        assert_type(keeper.acquire("premium", {"rpm": 1}).limits["rpm"].resets_at, str)
        assert_type((await admin.get_org("id")).configuration.quotas, dict[str, int])
        assert_type((await admin.list_apps("id"))[0].inherited_fields, list[str])
        assert_type(await admin.put_app("id", "chat", {}), AppAnswer)
        assert_type((await admin.freeze("id", reason="why")).frozen.at, str)
        assert_type((await admin.spend("a", "b")).total.cost_usd_micros, int)
        assert_type(await admin.delete_org("id"), None)
        assert keeper.budgets().budget  # type: ignore[attr-defined]
        assert (await admin.claim("token")).secret  # type: ignore[attr-defined]


def methods(kind: type) -> dict[str, Any]:
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_keepers_have_the_same_methods() -> None:
    """There is one list of what can be asked, and two ways of waiting for it."""
    assert methods(PriceKeeper).keys() == methods(AsyncPriceKeeper).keys()


@pytest.mark.parametrize("name", sorted(methods(PriceKeeper).keys() - {"before_close"}))
def test_they_take_the_same_arguments(name: str) -> None:
    """With the same names, defaults and annotations; one is awaited, but for the block."""
    waits, awaits = methods(PriceKeeper)[name], methods(AsyncPriceKeeper)[name]
    assert inspect.signature(waits) == inspect.signature(awaits)
    assert not inspect.iscoroutinefunction(waits)
    assert inspect.iscoroutinefunction(awaits) is (name != "call")
    assert waits.__doc__


@pytest.mark.parametrize("kind", [Admin, Api])
def test_a_method_shows_its_own_name_and_arguments(kind: type) -> None:
    """So ``help`` and ``unittest.mock.create_autospec`` work with it."""
    for name, method in methods(kind).items():
        assert method.__name__ == name
        assert method.__qualname__.endswith(f".{name}")
        assert next(iter(inspect.signature(method).parameters)) == "self"
    assert list(inspect.signature(Admin.freeze).parameters) == [
        "self",
        "org_id",
        "app_id",
        "reason",
    ]
