"""Many at once, on every store: one creation, no lost organisation, no ghost app."""

import asyncio

import pytest

from attribution import BY
from pricekeeper.audit import Change
from pricekeeper.audit.reading import TrailReader, WantedEntries
from pricekeeper.errors import ContendedError, NotFoundError
from pricekeeper.storage import Key, Put, Query, Store
from pricekeeper.storage.tables import CONFIG, SECRET_RETRIEVAL_TOKENS
from pricekeeper.tenants import Client, Enrolment, Saved, Tenants
from pricekeeper.tenants.reading import ClientRecord
from pricekeeper.values import AppId, OrgId
from stores import ShiftedClock, stored
from tenants.conftest import APP, LABELS, app_body, org_body

RACERS = 50


@pytest.mark.parametrize("kind", ["org", "app"])
async def test_racing_creations_have_one_winner(
    store: Store, clock: ShiftedClock, org_id: OrgId, kind: str
) -> None:
    """The others update; what came with the creation is the winner's and stays."""
    await Tenants(store, clock, LABELS).put_org(org_id, org_body(), BY)
    if kind == "org":
        await Tenants(store, clock, LABELS).delete_org(org_id, BY)
    tokens = [f"race-{org_id}-{n}" for n in range(RACERS)]

    async def create(token: str) -> Saved:
        tenants = Tenants(store, clock, LABELS)  # each an instance of its own
        enrolment = Enrolment({"mark": token}, (Put(SECRET_RETRIEVAL_TOKENS, {"PK": token}),))
        body = org_body(org_name=token) if kind == "org" else app_body(app_name=token)
        client = Client(org_id) if kind == "org" else Client(org_id, APP)
        return await tenants.put(client, body, BY, enrolment)

    saved = await asyncio.gather(*map(create, tokens))
    (winner,) = [token for token, one in zip(tokens, saved, strict=True) if one.created]
    written = await store.batch_get([(SECRET_RETRIEVAL_TOKENS, Key(token)) for token in tokens])
    assert [item["PK"] for item in written if item is not None] == [winner]
    item = await stored(store, CONFIG, Key(f"ORG#{org_id}", "ORG" if kind == "org" else "APP#api"))
    assert item["mark"] == winner
    assert {one.policy.token_generation for one in saved} == {item["token_generation"]}


async def test_a_list_entry_stands_and_falls_with_its_organisation(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """After all races the list agrees with the items, and no app survives its organisation."""
    tenants = [Tenants(store, clock, LABELS) for _ in range(4)]

    async def churn(one: Tenants, number: int) -> None:
        for step in range(6):
            try:
                if (number + step) % 3 == 0:
                    await one.delete_org(org_id, BY)
                elif (number + step) % 3 == 1:
                    await one.put_org(org_id, org_body(), BY)
                else:
                    await one.put_app(org_id, AppId(f"app-{number}"), app_body(), BY)
            except (NotFoundError, ContendedError):
                pass

    for _ in range(3):
        await asyncio.gather(*(churn(one, number) for number, one in enumerate(tenants)))
        org = await store.get(CONFIG, Key(f"ORG#{org_id}", "ORG"))
        entry = await store.get(CONFIG, Key("ORGS", org_id))
        assert (org is None) == (entry is None)
        for number in range(4):
            client = Client(org_id, AppId(f"app-{number}"))
            try:
                policy = await Tenants(store, clock, LABELS).read_registered_policy(client)
            except NotFoundError:
                continue
            assert org is not None
            app = await stored(store, CONFIG, Key(f"ORG#{org_id}", f"APP#app-{number}"))
            assert app["org_incarnation"] == org["incarnation"]
            assert app["token_generation"] == policy.token_generation


async def test_deleting_never_takes_an_app_of_the_next_life(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """The organisation is created again, with an app, while its old apps are being removed."""
    tenants = Tenants(store, clock, LABELS)

    class InBetween:
        """A store that lets the next life begin just before the old apps are removed."""

        def __init__(self) -> None:
            self.begun = False

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def query(self, query: Query, *, consistent: bool = True) -> object:
            page = await store.query(query, consistent=consistent)
            if not self.begun:
                self.begun = True
                await tenants.put_org(org_id, org_body(), BY)
                await tenants.put_app(org_id, APP, app_body(session_limit=9), BY)
            return page

    await tenants.put_org(org_id, org_body(), BY)
    await tenants.put_app(org_id, APP, app_body(), BY)
    await tenants.put_app(org_id, AppId("old"), app_body(), BY)
    await Tenants(InBetween(), clock, LABELS).delete_org(org_id, BY)  # type: ignore[arg-type]
    assert (await tenants.read_registered_policy(Client(org_id, APP))).session_limit == 9
    assert await store.get(CONFIG, Key(f"ORG#{org_id}", "APP#old")) is None


async def test_an_app_is_not_created_under_an_organisation_that_has_just_gone(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """It would not count, so it must not be acknowledged."""
    tenants = Tenants(store, clock, LABELS)

    class InBetween:
        """A store whose organisation is deleted just after it was read."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def batch_get(self, keys: object) -> object:
            found = await store.batch_get(keys)  # type: ignore[arg-type]
            if found[0] is not None:
                await tenants.delete_org(org_id, BY)
            return found

    await tenants.put_org(org_id, org_body(), BY)
    with pytest.raises(NotFoundError):
        await Tenants(InBetween(), clock, LABELS).put_app(org_id, APP, app_body(), BY)  # type: ignore[arg-type]
    assert await store.get(CONFIG, Key(f"ORG#{org_id}", "APP#api")) is None


async def test_racing_ends_of_tokens_all_succeed(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """None of them has to give way to another."""
    await Tenants(store, clock, LABELS).put_org(org_id, org_body(), BY)
    racers = (Tenants(store, clock, LABELS) for _ in range(RACERS))
    await asyncio.gather(*(one.end_tokens_issued_before_now(Client(org_id)) for one in racers))


async def test_each_of_racing_ends_of_tokens_is_in_the_audit_trail(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """Also that of an administrator who finds that another one has done it."""
    client = Client(org_id)
    await Tenants(store, clock, LABELS).put_org(org_id, org_body(), BY)
    first, second = (Tenants(store, clock, LABELS) for _ in range(2))
    audited = BY, Change("sessions.end", client.client_id, org_id)
    read = second.read_record

    async def read_late(client: Client) -> ClientRecord:
        """The other one is between this read and the write that follows it."""
        record = await read(client)
        second.read_record = read  # type: ignore[method-assign]
        await first.end_tokens_issued_before_now(client, audited=audited)
        return record

    second.read_record = read_late  # type: ignore[method-assign]
    await second.end_tokens_issued_before_now(client, audited=audited)
    page = await TrailReader(store).list_org(org_id, WantedEntries(action="sessions.end"), None, 10)
    assert len(page.entries) == 2
