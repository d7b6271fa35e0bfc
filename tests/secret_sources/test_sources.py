"""The sources of secrets; errors show no secret."""

from pathlib import Path

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import SettingsError
from pricekeeper.secret_sources import open_source
from pricekeeper.settings import AwsSecret, GivenSecret, SecretFile, read_settings
from pricekeeper.settings.locations import parse_secret_location

SETTING = "PRICEKEEPER_PEPPER"
ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:pricekeeper/pepper-AbCdEf"


async def read(text: str) -> str:
    location = parse_secret_location(SETTING, text)
    assert location is not None
    return await open_source(SETTING, location, ManualClock()).read()


def test_a_setting_says_where() -> None:
    assert parse_secret_location(SETTING, "") is None
    assert parse_secret_location(SETTING, "  ") is None
    assert parse_secret_location(SETTING, "v1:c2VjcmV0") == GivenSecret("v1:c2VjcmV0")
    assert parse_secret_location(SETTING, "file:/run/x") == SecretFile("/run/x")
    assert parse_secret_location(SETTING, "aws:a/b") == AwsSecret("a/b", None)
    assert parse_secret_location(SETTING, f"aws:{ARN}") == AwsSecret(ARN, "eu-central-1")


@pytest.mark.parametrize(
    "text", ["file:", "aws:", "aws:a b", "aws:a\n", f"aws:{ARN[:30]}", "aws:é"]
)
def test_a_place_that_is_none_is_told(text: str) -> None:
    with pytest.raises(SettingsError, match=SETTING):
        parse_secret_location(SETTING, text)


def test_a_secret_is_looked_for_where_the_tables_are() -> None:
    given = {"PRICEKEEPER_STORE": "dynamodb://eu-west-1", SETTING: "aws:pepper"}
    assert read_settings(given).pepper == AwsSecret("pepper", "eu-west-1")
    assert read_settings({**given, SETTING: f"aws:{ARN}"}).pepper == AwsSecret(ARN, "eu-central-1")
    assert read_settings({SETTING: "aws:pepper"}).pepper == AwsSecret("pepper", None)


def test_no_repr_shows_it() -> None:
    settings = read_settings({SETTING: "v1:CANARY", "PRICEKEEPER_SIGNING_KEYS": "CANARY"})
    assert "CANARY" not in f"{settings!r} {settings.pepper!r} {settings.pepper}"
    assert str(settings.pepper) == "the environment"


async def test_a_file_is_read(tmp_path: Path) -> None:
    """Its group may read it: that is how orchestrators hand files to a user without rights."""
    path = tmp_path / "pepper"
    path.write_text("v1:überall\n", "utf-8")
    for mode in (0o400, 0o440, 0o600, 0o640):
        path.chmod(mode)
        assert await read(f"file:{path}") == "v1:überall\n"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
async def test_a_file_that_everybody_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "pepper"
    path.write_text("v1:CANARY", "utf-8")
    path.chmod(mode)
    with pytest.raises(SettingsError, match=f"{SETTING}: every user .* chmod o= ") as told:
        await read(f"file:{path}")
    assert "CANARY" not in str(told.value)


async def test_a_file_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    binary, large = tmp_path / "binary", tmp_path / "large"
    binary.write_bytes(b"\xff\xfe")
    large.write_bytes(b"x" * (1 << 20) + b"x")
    for path in (binary, large):
        path.chmod(0o600)
    for path in (tmp_path / "missing", tmp_path, binary, large):
        with pytest.raises(SettingsError, match=SETTING):
            await read(f"file:{path}")
    assert not (tmp_path / "missing").exists()
