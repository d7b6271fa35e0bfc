"""The package's face: what it exposes, and what importing it costs."""

import importlib
import json
import re
from importlib.metadata import packages_distributions, requires
from types import ModuleType

import pytest

import pricekeeper
import pricekeeper.storage
from programs import run_program


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name


FACES = [
    importlib.import_module(name)
    for name in (
        *(f"pricekeeper.{layer}" for layer in ("bedrock", "bootstrap", "client")),
        *(f"pricekeeper.{layer}" for layer in ("credentials", "limiter")),
        *(f"pricekeeper.{layer}" for layer in ("metering", "pricing", "selection", "sessions")),
        *(f"pricekeeper.{layer}" for layer in ("standin", "storage", "telemetry", "tenants")),
        "pricekeeper.tokens",
    )
]


@pytest.mark.parametrize("module", FACES, ids=lambda module: module.__name__)
def test_all_is_what_is_exposed(module: ModuleType) -> None:
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == {name for name in module.__all__ if not name.startswith("_")}
    assert module.__all__ == sorted(module.__all__, key=_as_ruff_sorts)


def test_every_exposed_name_exists() -> None:
    for module in (pricekeeper, *FACES):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_package_is_typed() -> None:
    assert importlib.resources.files(pricekeeper).joinpath("py.typed").is_file()


def test_an_embedded_store_imports_no_aws_client() -> None:
    """Users of SQLite do not import what only DynamoDB needs."""
    program = """
import asyncio, sys
import pricekeeper, pricekeeper.storage
from pricekeeper.clock import SystemClock
from pricekeeper.settings import read_settings

async def main():
    settings = read_settings({"PRICEKEEPER_STORE": "sqlite://:memory:"})
    store = await pricekeeper.storage.open_store(settings.store, clock=SystemClock())
    await store.close()

asyncio.run(main())
print([name for name in ("aiobotocore", "aiohttp", "botocore") if name in sys.modules])
"""
    done = run_program(program)
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


def _name(distribution: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", distribution)[0].lower().replace("_", "-")


def _brought_by(installed: set[str], *distributions: str) -> set[str]:
    """These distributions and what they need, of what is installed; not what they merely offer."""
    found: set[str] = set()
    waiting = set(distributions)
    while waiting:
        found |= waiting
        needed = {one for name in waiting for one in requires(name) or () if "extra ==" not in one}
        waiting = {_name(one) for one in needed} & installed - found
    return found


@pytest.mark.parametrize(
    "program", ["import pricekeeper.client, pricekeeper.bedrock", "import pricekeeper as p; p.wrap"]
)
def test_the_client_loads_what_it_brings_and_no_more(program: str) -> None:
    """Here all is installed: what an app would lack, or wait for, must not be asked for at all."""
    code = f"""
import json, sys
before = set(sys.modules)
{program}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = run_program(code)
    owners = {
        module: set(map(_name, names)) - {"bedrock-price-keeper"}
        for module, names in packages_distributions().items()
    }
    loaded = {
        owner
        for module in json.loads(done.stdout)
        for owner in owners.get(module.partition(".")[0], ())
    }
    assert {"aiohttp", "msgspec"} <= loaded
    assert loaded <= _brought_by(set[str]().union(*owners.values()), "aiohttp", "msgspec")
