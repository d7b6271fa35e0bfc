"""What ``pip install`` brings: the client by itself, and the service as an extra.

The wheel is built once, with what is installed here. What the largest of its extras needs is
fetched, at the versions that are pinned, from the package index that pip is configured for. From
that alone it is installed, with each extra, into environments that have nothing else: what is
not declared is not there. Where there is no index, ``PRICEKEEPER_TESTS_OFFLINE=1`` leaves this out;
one that merely does not answer is a failure, so that silence is not taken for success.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dashboard

ROOT = Path(__file__).parents[1]
PACKAGES_MAX = 12
"""Ourselves included; boto3's own do not count, since programs that call Bedrock have them."""
BYTES_MAX = 25_000_000
OF_BOTO3 = {"boto3", "botocore", "jmespath", "s3transfer", "urllib3", "python-dateutil", "six"}
EXTRAS = ("", "server", "prices")
LARGEST = "prices"
INSTALL_SECS = 600
"""Only so that it ends: an index can be slow, and so can this machine."""
PIN = re.compile(r"^[A-Za-z0-9._-]+==[^ ]+(?: ; [^\\\n]+)?", re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * INSTALL_SECS),
    pytest.mark.skipif(
        os.environ.get("PRICEKEEPER_TESTS_OFFLINE") == "1",
        reason="PRICEKEEPER_TESTS_OFFLINE=1: there is no index to install dependencies from",
    ),
]


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel with one extra, and nothing else."""

    folder: Path

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run one of its programs, far from the checkout and its settings."""
        kept = {"PATH", "HOME", "LANG"} & os.environ.keys()
        return subprocess.run(  # noqa: S603 - our own programs
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=self.folder,
            env={name: os.environ[name] for name in kept},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def answer(self, program: str) -> Any:
        """What a program of Python prints, read as JSON."""
        done = self.run("python", "-I", "-W", "error", "-c", f"import json\n{program}")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    @property
    def packages(self) -> set[str]:
        found: list[str] = self.answer(
            "from importlib.metadata import distributions\n"
            "print(json.dumps([one.name for one in distributions()]))"
        )
        return {name.lower().replace("_", "-") for name in found}

    @property
    def size_bytes(self) -> int:
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())


def pip(*words: str | Path) -> None:
    done = subprocess.run(  # noqa: S603 - our own pip
        [sys.executable, "-m", "pip", "-q", "--no-input", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def named(wheel: Path, extra: str) -> str:
    return f"bedrock-price-keeper{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"


def install(folder: Path, wheel: Path, extra: str, fetched: Path) -> Installed:
    subprocess.run(  # noqa: S603 - our own Python
        [sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60
    )
    options = ("--no-compile", "--no-index", "--find-links", fetched)
    pip("--python", folder / "bin" / "python", "install", *options, named(wheel, extra))
    return Installed(folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installed]:
    """An environment for each extra. An index has thousands of files; it is asked once."""
    root = tmp_path_factory.mktemp("wheel")
    with contextlib.suppress(dashboard.PageMissingError):
        dashboard.build()
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", root, ROOT)
    (wheel,) = root.glob("*.whl")
    pins = root / "pins.txt"  # without their hashes: pip would want one of the wheel, too
    locked = (ROOT / "requirements" / "bench.txt").read_text("utf-8")
    pins.write_text("\n".join(found.strip() for found in PIN.findall(locked)), encoding="utf-8")
    fetched = root / "fetched"
    options = ("--only-binary=:all:", "--constraint", pins)
    pip("download", "-d", fetched, *options, named(wheel, LARGEST))
    return {extra: install(root / (extra or "client"), wheel, extra, fetched) for extra in EXTRAS}


@pytest.fixture
def client(installed: dict[str, Installed]) -> Installed:
    """What ``pip install bedrock-price-keeper`` gives."""
    return installed[""]


@pytest.fixture
def server(installed: dict[str, Installed]) -> Installed:
    return installed["server"]


def test_the_client_is_small(client: Installed) -> None:
    packages = client.packages
    assert {"bedrock-price-keeper", "aiohttp", "msgspec"} <= packages
    assert len(packages - OF_BOTO3) <= PACKAGES_MAX, sorted(packages)
    assert client.size_bytes <= BYTES_MAX


def test_the_client_is_whole(client: Installed) -> None:
    """What apps use is there, and every module of it can be imported."""
    program = """
import importlib, pkgutil, pricekeeper, pricekeeper.bedrock, pricekeeper.client
faces = [pricekeeper.wrap, pricekeeper.PriceKeeper, pricekeeper.AsyncPriceKeeper]
names = []
for package in (pricekeeper.bedrock, pricekeeper.client):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        names.append(importlib.import_module(found.name).__name__)
print(json.dumps(names))
"""
    names = client.answer(program)
    assert {"pricekeeper.client.keeper", "pricekeeper.client.wrapping.hooks"} <= set(names)


@pytest.mark.parametrize("words", [(), ("serve",), ("org", "list"), ("--help",)])
def test_the_client_says_what_its_program_needs(client: Installed, words: tuple[str, ...]) -> None:
    """In place of a traceback."""
    done = client.run("pricekeeper", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'bedrock-price-keeper[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_clients_program_looks_after_its_spool(client: Installed) -> None:
    assert "flush" in client.run("pricekeeper", "spool", "--help").stdout
    done = client.run("pricekeeper", "spool", "show")
    assert (done.returncode, done.stderr.partition(" ")[0]) == (2, "INVALID_SETTING")


def test_the_server_serves(server: Installed) -> None:
    done = server.run("pricekeeper", "serve", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run the service" in done.stdout
    app = server.answer("import pricekeeper.http.app as app\nprint(json.dumps(app.__name__))")
    assert app == "pricekeeper.http.app"
    assert not {"genai-prices", "pyarrow", "boto3", "pytest"} & server.packages


def test_the_server_has_the_dashboard(server: Installed) -> None:
    """All built files, if there are any, and no others."""
    if not (dashboard.BUILT / "index.html").is_file():
        pytest.skip("left out: npm, because the dashboard was not built here")
    found = server.answer(
        "from pricekeeper.http.dashboard import load_page\n"
        "page = load_page()\n"
        "print(json.dumps([page.index is not None, sorted(page.assets)]))"
    )
    built = sorted(
        path.name
        for path in (dashboard.BUILT / "assets").iterdir()
        if path.suffix not in (".br", ".gz")
    )
    assert found == [True, built]
    assert len(built) >= 3


def test_a_server_opens_a_store(server: Installed) -> None:
    store = f"sqlite:///{server.folder}/store.db"
    done = server.run("pricekeeper", "tables", "create", "--store", store, "--json")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_prices_bring_the_server_that_asks_for_them(installed: dict[str, Installed]) -> None:
    """The source works, on the package's own data."""
    prices = installed["prices"]
    assert "genai-prices" in prices.packages
    assert prices.answer(
        "import genai_prices, pricekeeper.pricing.sources.genai\n"
        "print(json.dumps(genai_prices.__version__))"
    )
    assert installed["server"].packages < prices.packages
