"""Keys over time: which one signs, which ones are believed, what the public sees."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from structlog.testing import capture_logs

from attribution import PERMIT
from pricekeeper.clock import ManualClock
from pricekeeper.errors import KeyringError
from pricekeeper.tokens import ACCESS_SECS, PUBLISH_AHEAD_SECS, KeyFile, Keyring, Keys
from pricekeeper.tokens.access_token import Flaw, TokenClaims, sign, verify
from pricekeeper.tokens.keyring import (
    KEYS_MAX,
    SKEW_SECS,
    dump_keyring,
    new_keyring,
    parse_keyring,
)
from tokens.conftest import AUDIENCE, ISSUER

NOW = 1_768_000_000
DAY = 86_400


def claims(now_epoch: int = NOW) -> TokenClaims:
    return TokenClaims(
        iss=ISSUER,
        sub="org-1",
        aud=AUDIENCE,
        exp=now_epoch + ACCESS_SECS,
        iat=now_epoch,
        jti="j",
        sid="000-n",
        org_id="1",
        scope="org:read",
        client_id="org-1",
    )


def kids(keyring: Keyring, now_epoch: int) -> list[str]:
    return [key["kid"] for key in keyring.jwks(now_epoch)["keys"]]


def test_a_new_key_is_published_before_it_signs_and_the_old_one_after() -> None:
    """Verifiers who keep the key set have the new key in time, and the old one long enough."""
    old = new_keyring(NOW)
    both = old.rotated(NOW, ahead_secs=300)
    first, second = (entry.kid for entry in both.entries)
    assert kids(both, NOW) == [first, second]
    assert both.signing(NOW + 299).kid == first
    assert both.signing(NOW + 300).kid == second
    end = NOW + 300 + ACCESS_SECS
    assert kids(both, end) == [first, second]
    assert kids(both, end + 2 * SKEW_SECS) == [second]


def test_a_token_lives_through_a_rotation() -> None:
    """The last one that the old key signed is believed until it expires."""
    keyring = new_keyring(NOW).rotated(NOW, ahead_secs=0)
    old = keyring.signing(NOW - 1)
    token = sign(PERMIT, claims(NOW), old)
    header = token.partition(".")[0]
    key = keyring.verifying(header, NOW + ACCESS_SECS - 1)
    assert key is old
    assert keyring.verifying(header, NOW + ACCESS_SECS + 2 * SKEW_SECS + 1) is None


def test_a_refresh_key_lasts_as_long_as_a_refresh_token() -> None:
    """Thirty days after it was last used, and no longer."""
    keyring = new_keyring(NOW).rotated(NOW, ahead_secs=0)
    old, new = keyring.entries
    assert keyring.refreshing(old.kid, NOW + 30 * DAY) is not None
    assert keyring.refreshing(old.kid, NOW + 31 * DAY) is None
    assert keyring.refreshing(new.kid, NOW + 1000 * DAY) is not None
    assert keyring.refreshing("unknown", NOW) is None


def test_a_rotation_leaves_out_keys_that_are_done() -> None:
    """So a keyring does not grow for ever; and one that is rotated too often says so."""
    keyring = new_keyring(NOW)
    for month in range(1, 12):
        keyring = keyring.rotated(NOW + month * 31 * DAY, ahead_secs=0)
    assert len(keyring.entries) == 2
    for _ in range(KEYS_MAX - 2):
        keyring = keyring.rotated(NOW + 341 * DAY, ahead_secs=0)
    with pytest.raises(KeyringError, match="rotate again later"):
        keyring.rotated(NOW + 341 * DAY, ahead_secs=0)


def test_keys_of_one_second_come_into_use_one_after_the_other() -> None:
    """Two rotations at once give two keys in a certain order."""
    keyring = new_keyring(NOW).rotated(NOW, 0).rotated(NOW, 0)
    assert [entry.active_from_epoch for entry in keyring.entries] == [NOW, NOW + 1, NOW + 2]


def test_a_clock_that_lags_behind_every_key_still_signs() -> None:
    """A wrong clock is no reason to stop."""
    keyring = new_keyring(NOW)
    assert keyring.signing(NOW - 10**6).kid == keyring.entries[0].kid


def test_the_public_sees_the_public_half_only() -> None:
    """And in the shape of RFC 7517, with names that follow from the keys (RFC 7638)."""
    keyring = new_keyring(NOW)
    (public,) = keyring.jwks(NOW)["keys"]
    assert public.keys() == {"kty", "crv", "x", "y", "kid", "use", "alg"}
    assert {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256"}.items() <= public.items()
    assert ECKey.import_key(public).thumbprint() == public["kid"]
    private = keyring.entries[0].signing["d"]
    for shown in (str(keyring.jwks(NOW)), repr(keyring.entries), repr(keyring)):
        assert private not in shown
        assert keyring.entries[0].refresh not in shown


def test_anybody_can_verify_with_the_published_keys() -> None:
    """Another implementation's reading of the standards, with nothing of ours but the JWKS."""
    keyring = new_keyring(NOW)
    token = sign(PERMIT, claims(), keyring.signing(NOW))
    published: Any = keyring.jwks(NOW)
    read = jwt.decode(token, KeySet.import_key_set(published), algorithms=["ES256"])
    assert read.header == {"typ": "at+jwt", "alg": "ES256", "kid": keyring.entries[0].kid}
    assert read.claims["sub"] == "org-1"


@pytest.mark.parametrize(
    ("changes", "now_epoch", "flaw"),
    [
        ({}, NOW, None),
        ({}, NOW + ACCESS_SECS - 1, None),
        ({}, NOW + ACCESS_SECS, Flaw.EXPIRED),
        ({}, NOW - SKEW_SECS, None),
        ({}, NOW - SKEW_SECS - 1, Flaw.NOT_YET_VALID),
        ({"nbf": NOW + SKEW_SECS}, NOW, None),
        ({"nbf": NOW + SKEW_SECS + 1}, NOW, Flaw.NOT_YET_VALID),
        ({"iss": "another"}, NOW, Flaw.WRONG_ISSUER),
        ({"aud": "another"}, NOW, Flaw.WRONG_AUDIENCE),
    ],
)
def test_a_signed_token_counts_in_its_time_and_place_only(
    changes: dict[str, Any], now_epoch: int, flaw: Flaw | None
) -> None:
    """To the second; clocks may be apart by the skew, but an end is an end."""
    keys = Keys(new_keyring(0), ManualClock(now_epoch * 1000))
    token = sign(PERMIT, msgspec.structs.replace(claims(), **changes), keys.signing_key())
    read = verify(token, keys, issuer=ISSUER, audience=AUDIENCE, now_epoch=now_epoch)
    assert (read if isinstance(read, Flaw) else None) is flaw


def test_a_keyring_reads_as_it_was_written() -> None:
    """Also across versions of the program: this is a file format."""
    keyring = new_keyring(NOW).rotated(NOW, 0)
    assert parse_keyring(dump_keyring(keyring)).entries == keyring.entries


OTHER = new_keyring(NOW).entries[0].signing
OTHER_CURVE = ECKey.generate_key("P-384")
SPOILT: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no keys": lambda document, _: document.update(keys=[]),
    "too many": lambda document, key: document.update(keys=[key] * (KEYS_MAX + 1)),
    "twice": lambda document, key: document.update(keys=[key, key]),
    "newer version": lambda document, _: document.update(version=2),
    "unknown field": lambda _, key: key.update(note="x"),
    "public only": lambda _, key: key["signing"].pop("d"),
    "another curve": lambda _, key: key.update(
        signing=OTHER_CURVE.as_dict(private=True), kid=OTHER_CURVE.thumbprint()
    ),
    "not on the curve": lambda _, key: key["signing"].update(x=key["signing"]["y"]),
    "halves of two keys": lambda _, key: key["signing"].update(d=OTHER["d"]),
    "another name": lambda _, key: key.update(kid="../../etc/passwd"),
    "short secret": lambda _, key: key.update(refresh=base64.urlsafe_b64encode(b"short").decode()),
    "no secret": lambda _, key: key.update(refresh="!"),
}


@pytest.mark.parametrize("how", ["not json", *SPOILT])
def test_a_spoilt_keyring_is_refused(how: str) -> None:
    """At start, with a message that shows no key."""
    document = json.loads(dump_keyring(new_keyring(NOW)))
    if how in SPOILT:
        SPOILT[how](document, document["keys"][0])
    with pytest.raises(KeyringError) as refusal:
        parse_keyring(json.dumps(document) if how in SPOILT else "{")
    assert '"d"' not in str(refusal.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.json"


def test_a_file_is_made_once_and_survives_a_restart(path: Path) -> None:
    clock = ManualClock()
    first = Keys.in_file(path, clock).signing_key().kid
    assert Keys.in_file(path, clock).signing_key().kid == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(item.name for item in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


PROGRAM = """
import sys
from pathlib import Path
from pricekeeper.tokens import KeyFile
file = KeyFile(Path(sys.argv[1]))
sys.stdin.readline()
keyring = file.load_or_create(1) if sys.argv[2] == "create" else file.rotate(1)
print(keyring.entries[-1].kid)
"""


def in_processes(path: Path, what: str, count: int) -> list[str]:
    """What so many processes get that do it at the same moment."""
    started = [
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", PROGRAM, str(path), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[0].strip() for process in started]


def test_processes_that_start_together_agree_on_one_key(path: Path) -> None:
    """And rotations at the same moment are all there afterwards."""
    assert set(in_processes(path, "create", 3)) == {KeyFile(path).load().entries[0].kid}
    rotated = in_processes(path, "rotate", 2)
    assert {entry.kid for entry in KeyFile(path).load().entries[1:]} == set(rotated)
    assert len(set(rotated)) == 2


def test_a_process_that_died_while_writing_is_no_obstacle(path: Path) -> None:
    clock = ManualClock()
    keys = Keys.in_file(path, clock)
    Path(f"{path}.new").write_text("half a key")
    KeyFile(path).rotate(clock.now_ms() // 1000)
    assert keys.signing_key().kid == KeyFile(path).load().entries[0].kid
    assert not Path(f"{path}.new").exists()


def test_a_running_instance_follows_a_rotation(path: Path) -> None:
    """It publishes the new key, and signs with it when its time has come."""
    clock = ManualClock()
    keys = Keys.in_file(path, clock)
    before = keys.signing_key().kid
    rotated = KeyFile(path).rotate(clock.now_ms() // 1000)
    clock.advance_ms(1_000)
    assert [key["kid"] for key in keys.jwks()["keys"]] == [entry.kid for entry in rotated.entries]
    assert keys.signing_key().kid == before
    clock.advance_ms(PUBLISH_AHEAD_SECS * 1_000)
    assert keys.signing_key().kid == rotated.entries[1].kid


def test_an_unknown_key_is_looked_for_at_once(path: Path) -> None:
    """Another process may have rotated and signed within the same second."""
    clock = ManualClock()
    now = clock.now_ms() // 1000
    KeyFile(path).load_or_create(now - 100)
    verifying, refreshing = (Keys.in_file(path, clock) for _ in range(2))
    known = verifying.signing_key().kid
    KeyFile(path).rotate(now - 10, ahead_secs=0)
    there = Keys.in_file(path, clock)
    assert there.signing_key().kid != known
    token = sign(PERMIT, claims(now), there.signing_key())
    read = verify(token, verifying, issuer=ISSUER, audience=AUDIENCE, now_epoch=now)
    assert isinstance(read, TokenClaims)
    assert refreshing.find_refresh_key(there.current_refresh_key().id) is not None


def test_keys_that_somebody_has_seen_can_be_dropped_at_once(path: Path) -> None:
    """Nothing that they signed or derived counts any more."""
    clock = ManualClock()
    keys = Keys.in_file(path, clock)
    now = clock.now_ms() // 1000
    stolen, revision = keys.signing_key(), keys.revision
    KeyFile(path).rotate(now, drop_old=True)
    clock.advance_ms(1_000)
    assert keys.revision > revision
    assert keys.signing_key().kid != stolen.kid
    assert keys.find_refresh_key(stolen.kid) is None
    refused = verify(
        sign(PERMIT, claims(now), stolen), keys, issuer=ISSUER, audience=AUDIENCE, now_epoch=now
    )
    assert refused is Flaw.UNKNOWN_HEADER


@pytest.mark.parametrize("how", ["gone", "spoilt", "open to others"])
def test_a_running_instance_outlives_its_file(path: Path, how: str) -> None:
    """The known keys stay in force; the log has the error, once."""
    clock = ManualClock()
    keys = Keys.in_file(path, clock)
    kid = keys.signing_key().kid
    if how == "gone":
        path.unlink()
    elif how == "spoilt":
        path.write_text("{")
    else:
        path.chmod(0o644)
    with capture_logs() as logs:
        for _ in range(3):
            clock.advance_ms(1_000)
            assert keys.signing_key().kid == kid
    assert [line["event"] for line in logs] == ["keyring_unusable"]


def test_a_file_that_others_can_read_is_refused_at_start(path: Path) -> None:
    Keys.in_file(path, ManualClock())
    path.chmod(0o640)
    with pytest.raises(KeyringError, match="chmod 600"):
        Keys.in_file(path, ManualClock())


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    """An operator reads this, so it names the file."""
    (tmp_path / "data").write_text("a file, not a directory")
    with pytest.raises(KeyringError, match=r"data/keys\.json"):
        Keys.in_file(tmp_path / "data" / "keys.json", ManualClock())


def test_a_huge_file_is_no_keyring(path: Path) -> None:
    """It is not even read to the end."""
    Keys.in_file(path, ManualClock())
    path.write_bytes(b" " * (2 << 20))
    with pytest.raises(KeyringError, match="too large"):
        KeyFile(path).load()
