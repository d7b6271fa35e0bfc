"""The package's face: what it exposes, and what importing it costs."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import pricekeeper
import pricekeeper.storage


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name


FACES = [
    importlib.import_module(name)
    for name in (
        *(f"pricekeeper.{layer}" for layer in ("bedrock", "bootstrap", "client", "containment")),
        *(f"pricekeeper.{layer}" for layer in ("credentials", "limiter")),
        *(f"pricekeeper.{layer}" for layer in ("metering", "pricing", "selection", "sessions")),
        *(f"pricekeeper.{layer}" for layer in ("standin", "storage", "telemetry", "tenants")),
        "pricekeeper.tokens",
    )
]


@pytest.mark.parametrize("module", FACES, ids=lambda module: module.__name__)
def test_all_is_what_is_exposed(module: ModuleType) -> None:
    """`__all__` names every public name of the module, no other, and in order."""
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert public == {name for name in module.__all__ if not name.startswith("_")}
    assert module.__all__ == sorted(module.__all__, key=_as_ruff_sorts)


def test_every_exposed_name_exists() -> None:
    """Nothing is promised that cannot be imported."""
    for module in (pricekeeper, *FACES):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_package_is_typed() -> None:
    """Type checkers of users see our annotations."""
    assert importlib.resources.files(pricekeeper).joinpath("py.typed").is_file()


def test_an_embedded_store_imports_no_aws_client() -> None:
    """Whoever keeps items in SQLite never pays for importing what only DynamoDB needs."""
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
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stderr == ""
    assert done.stdout.strip() == "[]"
