"""The store in a dict finds what a real store finds."""

from collections.abc import Iterator
from random import Random

from memory_store import MemoryStore
from pricekeeper.clock import ManualClock
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Delete, Key, Put, Query, open_store
from pricekeeper.storage.tables import CONFIG, SESSIONS

NAMES = ("", "a", "ab", "abc", "b", "ba", "z", "é", "éa", "\uffff", "\U00010000", "\U0010ffff")


def some_queries(random: Random) -> Iterator[Query]:
    """Of each kind that there is: by prefix and by range, on from somewhere, in both orders."""
    for _ in range(400):
        prefix, first, last = "", "", ""
        if random.random() < 0.4:
            prefix = random.choice(NAMES)
        else:
            first, last = random.choice(NAMES), random.choice(NAMES)
        yield Query(
            SESSIONS,
            random.choice("pq"),
            prefix=prefix,
            first=first,
            last=last,
            after=random.choice(NAMES) if random.random() < 0.4 else "",
            limit=random.choice((1, 2, 5, 1000)),
            descending=random.random() < 0.5,
        )


async def test_it_finds_what_sqlite_finds() -> None:
    random, clock = Random(1), ManualClock()
    memory = MemoryStore(clock)
    sqlite = await open_store(SqliteLocation(MEMORY), clock=clock)
    await sqlite.create_tables()
    found = 0
    for query in some_queries(random):
        sk = random.choice(NAMES[1:]) + random.choice(NAMES)
        write = Put(SESSIONS, {"PK": random.choice("pq"), "SK": sk, "n": random.randrange(9)})
        if random.random() < 0.3:
            write.item["expires_at_epoch"] = clock.now_ms() // 1000 + random.randrange(20)
        await memory.put(write)
        await sqlite.put(write)
        delete = Delete(SESSIONS, Key(random.choice("pq"), random.choice(NAMES[1:])))
        assert await memory.delete(delete) == await sqlite.delete(delete)
        clock.advance_ms(random.randrange(2_000))
        page = await memory.query(query)
        assert page == await sqlite.query(query), query
        found += len(page.items)
    assert found > 400
    await sqlite.close()


async def test_what_it_gave_away_is_not_its_own() -> None:
    """Changing an item that was read, or was written, changes nothing in the store."""
    store = MemoryStore(ManualClock())
    item = {"PK": "a", "SK": "1", "n": 1}
    await store.put(Put(CONFIG, item))
    item["n"] = 2
    (read,) = (await store.query(Query(CONFIG, "a"))).items
    read["n"] = 3
    got = await store.get(CONFIG, Key("a", "1"))
    assert got == {"PK": "a", "SK": "1", "n": 1}
    got["n"] = 4
    assert await store.batch_get([(CONFIG, Key("a", "1"))]) == [{"PK": "a", "SK": "1", "n": 1}]
