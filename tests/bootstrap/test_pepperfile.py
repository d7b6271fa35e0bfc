"""The pepper file is made once, and only its owner can read it."""

import base64
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pricekeeper.credentials.peppers import Peppers, load_or_create_peppers
from pricekeeper.errors import SettingsError

CREATORS = 8
KEY = base64.b64encode(b"k" * 32).decode()
OTHER_KEY = base64.b64encode(b"o" * 32).decode()


def known_by(peppers: Peppers) -> str:
    """What a secret rests as: the same only under the same pepper."""
    return peppers.hash("org-1", "a secret")


def test_it_is_made_on_first_use_and_kept(tmp_path: Path) -> None:
    """Only the owner can read the file and its folder."""
    path = tmp_path / "data" / "pepper"
    first = known_by(load_or_create_peppers(path))
    written = path.read_bytes()
    assert known_by(load_or_create_peppers(path)) == first
    assert path.read_bytes() == written
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["pepper"]


def test_every_deployment_has_its_own(tmp_path: Path) -> None:
    """A table that is stolen from one is worthless with the pepper of another."""
    one, other = (load_or_create_peppers(tmp_path / name / "pepper") for name in "ab")
    assert known_by(one) != known_by(other)


def test_those_who_start_together_agree(tmp_path: Path) -> None:
    """The first linked file wins, and all processes use it."""
    path, together = tmp_path / "pepper", threading.Barrier(CREATORS)

    def start(_: int) -> str:
        together.wait()
        return known_by(load_or_create_peppers(path))

    with ThreadPoolExecutor(CREATORS) as pool:
        assert len(set(pool.map(start, range(CREATORS)))) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["pepper"]


def test_who_comes_second_takes_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the other one finished in the very moment before our own was put in place."""
    path, link, first = tmp_path / "pepper", os.link, []

    def link_late(source: str, target: Path) -> None:
        monkeypatch.undo()
        first.append(known_by(load_or_create_peppers(path)))
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    assert [known_by(load_or_create_peppers(path))] == first
    assert [file.name for file in tmp_path.iterdir()] == ["pepper"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    """With the command that mends it; a pepper that was open to all is none."""
    path = tmp_path / "pepper"
    load_or_create_peppers(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {path}"):
        load_or_create_peppers(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no pepper"),
        ("\n \n", "holds no pepper"),
        ("nonsense", "VERSION:BASE64"),
        (f":{KEY}", "VERSION:BASE64"),
        ("v1:", "VERSION:BASE64"),
        ("v1:%%%", "VERSION:BASE64"),
        ("v1:c2hvcnQ=", "at least 32 bytes"),
        (f"v 1:{KEY}", "VERSION:BASE64"),
        (f"v1:{KEY}\nv1:{OTHER_KEY}", "every version has a key of its own"),
        (f"v1:{KEY}\nhalf a li", "VERSION:BASE64"),
    ],
)
def test_a_damaged_file_is_told_and_not_replaced(tmp_path: Path, text: str, told: str) -> None:
    """A new pepper in its place would make every secret worthless; the message names the file."""
    path = tmp_path / "pepper"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=told) as caught:
        load_or_create_peppers(path)
    assert caught.value.setting == str(path)
    assert path.read_text() == text
    assert KEY not in str(caught.value)


def test_bytes_that_are_no_text_are_told_too(tmp_path: Path) -> None:
    """As everything that can't be read is."""
    path = tmp_path / "pepper"
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="can't be read"):
        load_or_create_peppers(path)
    with pytest.raises(SettingsError, match="can't be read"):
        load_or_create_peppers(path / "below" / "a-file")


def test_the_last_line_is_in_use_and_the_others_still_count(tmp_path: Path) -> None:
    """Replacing it is adding a line: old hashes verify, and are known to be out of date."""
    path = tmp_path / "pepper"
    path.write_text(f"v1:{KEY}\n")
    path.chmod(0o600)
    old = known_by(load_or_create_peppers(path))
    path.write_text(f"v1:{KEY}\nv2:{OTHER_KEY}\n")
    peppers = load_or_create_peppers(path)
    assert "$v2$" in known_by(peppers)
    assert peppers.matches(old, "org-1", "a secret")
    assert peppers.is_outdated(old)
