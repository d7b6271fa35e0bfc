"""Signing keys and pepper, wherever they are kept: the same for all who start from there."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pricekeeper.bootstrap import open_services
from pricekeeper.bootstrap.secrets import open_keys, read_peppers
from pricekeeper.clock import SystemClock
from pricekeeper.credentials.peppers import new_pepper
from pricekeeper.errors import SettingsError
from pricekeeper.settings import Settings, read_settings
from pricekeeper.telemetry.logs import redacted
from pricekeeper.tokens import dump_keyring, new_keyring
from secrets_manager import SecretsManagerStandIn, running_secrets_manager

KEYS, PEPPER = "PRICEKEEPER_SIGNING_KEYS", "PRICEKEEPER_PEPPER"
KEYRING = dump_keyring(new_keyring(int(time.time()) - 10)).decode()
SECRETS = {"signing-keys": KEYRING, "pepper": new_pepper()}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretsManagerStandIn]:
    with running_secrets_manager(**SECRETS) as standin:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", standin.url)
        yield standin


@pytest.fixture(params=["aws", "environment", "file", "data folder"])
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, aws: SecretsManagerStandIn
) -> Settings:
    """What is set so that an instance finds them."""
    given = {
        "PRICEKEEPER_DATA_DIR": str(tmp_path / "data"),
        "PRICEKEEPER_STORE": "sqlite://:memory:",
    }
    if request.param == "aws":
        given |= {KEYS: "aws:signing-keys", PEPPER: f"aws:{aws.arn('pepper')}"}
    elif request.param == "environment":
        given |= {KEYS: json.dumps(json.loads(KEYRING)), PEPPER: SECRETS["pepper"]}
    else:
        folder = tmp_path / ("data" if request.param == "data folder" else "mounted")
        folder.mkdir(mode=0o700)
        for setting, name, file in (
            (KEYS, "signing-keys", "signing-keys.json"),
            (PEPPER, "pepper", "pepper"),
        ):
            path = folder / file
            path.write_text(SECRETS[name], "utf-8")
            path.chmod(0o600)
            if request.param == "file":
                given[setting] = f"file:{path}"
    return read_settings(given)


async def test_they_are_the_same_wherever_they_come_from(settings: Settings) -> None:
    """The key that signs, and the hash of a secret."""
    clock = SystemClock()
    keys, _ = await open_keys(settings, clock)
    (entry,) = json.loads(KEYRING)["keys"]
    assert keys.signing_key().kid == entry["kid"]
    peppers = await read_peppers(settings, clock)
    assert peppers.matches(peppers.hash("org-1", "secret"), "org-1", "secret")
    given = await read_peppers(read_settings({PEPPER: SECRETS["pepper"]}), clock)
    assert peppers.hash("org-1", "secret") == given.hash("org-1", "secret")


async def test_what_may_change_is_watched(settings: Settings) -> None:
    """What is in the environment can't change; the data folder is looked at in another way."""
    async with open_services(settings) as services:
        is_watched = services.key_watcher is not None
    location = str(settings.signing_keys)
    assert is_watched == location.startswith(("aws:", "file:"))


async def test_they_are_in_no_line_of_the_log(settings: Settings) -> None:
    """From the moment that they are known."""
    await open_keys(settings, SystemClock())
    (entry,) = json.loads(KEYRING)["keys"]
    for secret in (entry["refresh"], entry["signing"]["d"]):
        assert secret not in redacted(f"x {secret} y".encode()).decode()
    if settings.pepper is not None:
        await read_peppers(settings, SystemClock())
        secret = SECRETS["pepper"].partition(":")[2]
        assert secret not in redacted(f"x {secret} y".encode()).decode()


async def test_an_older_pepper_goes_on_beside_the_newest(aws: SecretsManagerStandIn) -> None:
    """One on each line, or with blanks between them, as an environment has it."""
    older, clock = (
        await read_peppers(read_settings({PEPPER: SECRETS["pepper"]}), SystemClock()),
        SystemClock(),
    )
    stored = older.hash("org-1", "secret")
    for between in (" ", "\n"):
        aws.secrets["pepper"] = between.join((SECRETS["pepper"], new_pepper().replace("v1", "v2")))
        both = await read_peppers(read_settings({PEPPER: "aws:pepper"}), clock)
        assert both.matches(stored, "org-1", "secret")
        assert both.is_outdated(stored)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({KEYS: "aws:nothing"}, "ResourceNotFoundException"),
        ({PEPPER: "aws:nothing"}, "ResourceNotFoundException"),
        ({KEYS: "file:/nowhere/at/all"}, "No such file"),
        ({PEPPER: "file:/nowhere/at/all"}, "No such file"),
        ({KEYS: "CANARY"}, "not JSON of the documented shape"),
        ({PEPPER: "CANARY"}, "a line is VERSION:BASE64"),
        ({PEPPER: "v1:Q0FOQVJZ"}, "at least 32 bytes"),
        ({KEYS: "aws:pepper"}, "not JSON of the documented shape"),
        ({PEPPER: "aws:signing-keys"}, "a line is VERSION:BASE64"),
    ],
)
async def test_a_failure_at_the_start_names_the_setting(
    tmp_path: Path, aws: SecretsManagerStandIn, given: dict[str, str], told: str
) -> None:
    """And shows nothing of the secret. Nothing else is made to stand in for it."""
    more = {
        "PRICEKEEPER_DATA_DIR": str(tmp_path / "data"),
        "PRICEKEEPER_STORE": "sqlite://:memory:",
    }
    (setting,) = given
    with pytest.raises(SettingsError) as error:
        async with open_services(read_settings({**more, **given})):
            pass
    text = f"{error.value} {error.value.__cause__!r}"
    assert error.value.setting == setting
    assert told in text
    hidden = (
        "CANARY",
        "Q0FOQVJZ",
        SECRETS["pepper"][3:],
        json.loads(KEYRING)["keys"][0]["refresh"],
    )
    assert not any(part in text for part in hidden)
    made = {name for _, _, names in os.walk(tmp_path) for name in names}
    assert ("signing-keys.json" if setting == KEYS else "pepper") not in made
