"""``pricekeeper keys``: made and rotated for wherever they are kept; and commands that use them."""

import json
from pathlib import Path

import pytest

from cli.conftest import ORG, Cli
from cli.test_doctor import check_of, levels
from pricekeeper.tokens import parse_keyring
from secrets_manager import running_secrets_manager

KEYS, PEPPER = "PRICEKEEPER_SIGNING_KEYS", "PRICEKEEPER_PEPPER"


def test_new_ones_are_printed_for_a_pipe(cli: Cli) -> None:
    """The keyring as JSON either way, the pepper as a line; nothing is written anywhere."""
    for words in (("keys", "new"), ("keys", "new", "--json")):
        assert len(parse_keyring(cli(*words).out).entries) == 1
    line = cli("keys", "new-pepper").out
    assert (line.startswith("v1:"), len(line.splitlines())) == (True, 1)
    assert cli.ok("keys", "new-pepper")["pepper"] != line.strip()
    assert list(cli.folder.iterdir()) == []


def keep(cli: Cli, place: str) -> None:
    """Have them kept there."""
    keyring, pepper = cli("keys", "new").out, cli("keys", "new-pepper").out.strip()
    for setting, text in ((KEYS, keyring), (PEPPER, pepper)):
        path = cli.folder / setting
        if place == "file":
            path.write_text(text, "utf-8")
            path.chmod(0o600)
        cli.monkeypatch.setenv(setting, f"file:{path}" if place == "file" else text)


@pytest.mark.parametrize("place", ["environment", "file"])
def test_a_rotation_of_keys_kept_elsewhere_is_printed(cli: Cli, place: str) -> None:
    """A new key beside the old one; without --print it is said why not."""
    keep(cli, place)
    refused = cli("keys", "rotate")
    assert (refused.code, "--print" in refused.err, KEYS in refused.err) == (2, True, True)
    before = parse_keyring(cli("keys", "rotate", "--print").out)
    assert len(before.entries) == 2
    dropped = parse_keyring(cli("keys", "rotate", "--print", "--drop-old").out)
    assert len(dropped.entries) == 1
    assert dropped.entries[0].kid not in {entry.kid for entry in before.entries}


@pytest.mark.parametrize("place", ["environment", "file"])
def test_commands_on_the_store_use_the_pepper_from_there(cli: Cli, place: str) -> None:
    """So a secret that is claimed here opens at the service; there is no data folder."""
    keep(cli, place)
    cli.register()
    made = cli.ok("admin-keys", "create", "platform", "--role", "ADMIN")
    assert made["key"].startswith("pka_")
    assert not (cli.folder / "data").exists()
    found = levels(cli)[1]
    assert found["signing keys"] == found["pepper"] == "OK"
    assert "data folder" not in found
    cli.monkeypatch.delenv(PEPPER)
    assert "pepper" in cli("credentials", "provisioning-key", ORG).err


@pytest.mark.slow
def test_secrets_manager_is_asked(cli: Cli) -> None:
    """Doctor says where they come from, and what is wrong there."""
    keyring, pepper = cli("keys", "new").out, cli("keys", "new-pepper").out.strip()
    cli.monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", "3f9c1e7a5b8d2460c7e1f3a9b5d80264")
    with running_secrets_manager(keys=keyring, pepper=pepper) as standin:
        cli.monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", standin.url)
        cli.monkeypatch.setenv(KEYS, "aws:keys")
        cli.monkeypatch.setenv(PEPPER, "aws:pepper")
        cli.register()
        pepper = check_of(cli, "pepper")
        assert (pepper["level"], pepper["told"]) == ("OK", "from aws:pepper")
        rotated = parse_keyring(cli("keys", "rotate", "--print").out)
        assert [entry.kid for entry in rotated.entries][:1] == [
            json.loads(keyring)["keys"][0]["kid"]
        ]
        cli.monkeypatch.setenv(KEYS, "aws:nothing")
        check = check_of(cli, "signing keys")
        assert check["level"] == "FAIL"
        assert "ResourceNotFoundException" in check["told"]
        served = cli("serve")
        assert served.code == 2
        assert served.err.startswith("INVALID_SETTING PRICEKEEPER_SIGNING_KEYS: aws:nothing: ")
        assert len(served.err.splitlines()) == 1


def test_the_data_folder_is_rotated_in_place(cli: Cli, tmp_path: Path) -> None:
    """As ever; --print shows what a rotation would be, and leaves the file alone."""
    cli.register()
    path = tmp_path / "data" / "signing-keys.json"
    before = path.read_bytes()
    assert len(parse_keyring(cli("keys", "rotate", "--print").out).entries) == 2
    assert path.read_bytes() == before
    assert cli.ok("keys", "rotate")["keys"] == 2
    assert path.read_bytes() != before
