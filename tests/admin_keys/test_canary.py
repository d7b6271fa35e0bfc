"""A planted key is nowhere to be found: not in the files, not in the logs, not in an error."""

import itertools
from pathlib import Path

import pytest

from admin_keys.conftest import BY, create
from credentials.conftest import NEW_PEPPER, OLD_PEPPER
from credentials.test_canary import ENTROPY, forms, read_all
from pricekeeper.admin_keys import AdminKeys
from pricekeeper.credentials import Peppers
from pricekeeper.errors import NotFoundError
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import open_store
from tokens.conftest import MovableClock


async def test_no_key_rests_or_is_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Through creation, use, rotation, a new pepper, refusals and deletion."""
    caplog.set_level(0)
    clock, numbers = MovableClock(), itertools.count()

    def entropy(length: int) -> bytes:
        return (bytes([next(numbers)]) + ENTROPY)[:length]

    store = await open_store(SqliteLocation(str(tmp_path / "store.db")), clock=clock)
    await store.create_tables()
    old = AdminKeys(store, clock, Peppers(OLD_PEPPER), entropy=entropy)
    new = AdminKeys(store, clock, Peppers(NEW_PEPPER, OLD_PEPPER), entropy=entropy)
    first = await create(old, name="canary-name")
    second = await old.rotate(first.key.key_id, 24, BY)
    texts = [first.text.reveal(), second.text.reveal()]
    errors = []
    for text in texts:
        assert await new.find(text) is not None
        assert await new.find(text[:-1] + ("1" if text[-1] == "0" else "0")) is None
        with pytest.raises(NotFoundError) as error:
            await new.delete(text, BY)
        errors.append(f"{error.value!r}")
    third = await create(old, name="canary-name")
    texts.append(third.text.reveal())
    await new.delete(third.key.key_id, BY)
    while_open = read_all(tmp_path)
    await store.close()
    printed = "".join(capfd.readouterr())
    assert len(set(texts)) == 3
    for place in (while_open, read_all(tmp_path)):
        assert b"canary-name" in place, "this is the wrong place to look"
        assert b"hmac-sha256$v2$" in place
    told = f"{printed} {caplog.text}".encode()
    assert b"admin_key_created" in told, "this is the wrong place to look"
    for place in (while_open, read_all(tmp_path), told):
        for canary in (b"CANARY", ENTROPY.hex().encode(), OLD_PEPPER.key, NEW_PEPPER.key):
            assert canary not in place
        for text in texts:
            assert [form for form in (*forms(text), text[16:].encode()) if form in place] == []
