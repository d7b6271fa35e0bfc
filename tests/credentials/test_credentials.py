"""The life of a credential on every store: registered, claimed, rotated, revoked."""

import pytest

from attribution import BY
from credentials.conftest import NEW_PEPPER, OLD_PEPPER, Instance, instance
from pricekeeper.credentials import ClaimedSecret, Peppers, Secret
from pricekeeper.errors import InvalidClientError, InvalidValueError, NotFoundError
from pricekeeper.storage import Key, Put, Set, Store, Update
from pricekeeper.storage.tables import CONFIG, SECRET_RETRIEVAL_TOKENS
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, config_key
from pricekeeper.values import AppId
from stores import ShiftedClock, stored
from tenants.conftest import new_org_id, org_body

HOUR_MS = 3_600_000


async def claim_fails(one: Instance, token: Secret | str) -> str:
    text = token.reveal() if isinstance(token, Secret) else token
    with pytest.raises(NotFoundError) as error:
        await one.credentials.claim(text, BY)
    return str(error.value)


class TestRegistering:
    async def test_creation_gives_a_token_and_an_update_none(
        self, one: Instance, client: Client
    ) -> None:
        retrieval = await one.register(client)
        again = await one.provision(client)
        assert (again.created, again.retrieval) == (False, None)
        claimed = await one.credentials.claim(retrieval.token.reveal(), BY)
        assert await one.opens(client, claimed.client_secret)

    async def test_before_the_claim_nothing_opens(self, one: Instance, client: Client) -> None:
        """A client without a secret is not one with an empty secret."""
        await one.register(client)
        for text in ("", " ", "None", "pks_"):
            with pytest.raises(InvalidClientError):
                await one.credentials.authenticate(client.client_id, text)


class TestClaiming:
    async def test_the_secret_works_and_is_new_each_time(
        self, one: Instance, client: Client
    ) -> None:
        """And the answer says for whom it is."""
        retrieval = await one.register(client)
        claimed = await one.credentials.claim(retrieval.token.reveal(), BY)
        assert claimed == ClaimedSecret(client.client_id, claimed.client_secret, None)
        assert await one.opens(client, claimed.client_secret)
        assert claimed.client_secret != await one.rotated(client, 0)

    async def test_a_second_claim_finds_nothing(self, one: Instance, client: Client) -> None:
        """The token is used up, and the secret stays good."""
        retrieval = await one.register(client)
        secret = (await one.credentials.claim(retrieval.token.reveal(), BY)).client_secret
        await claim_fails(one, retrieval.token)
        assert await one.opens(client, secret)

    async def test_ten_minutes_are_the_most(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        retrieval = await one.register(client)
        assert 595 <= retrieval.expires_at_epoch - clock.now_epoch() <= 600
        clock.shift_ms = 599_000 - 5_000
        secret = (await one.credentials.claim(retrieval.token.reveal(), BY)).client_secret
        rotation = await one.credentials.rotate(client, 0, BY)
        clock.shift_ms += 600_000
        await claim_fails(one, rotation.retrieval.token)
        assert await one.opens(client, secret)

    async def test_every_refusal_is_the_same(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """Mistyped, unknown, used, replaced, revoked, expired, or of a client that is gone."""
        told = set()
        used = (await one.register(client)).token
        await one.credentials.claim(used.reveal(), BY)
        replaced = (await one.credentials.rotate(client, 0, BY)).retrieval.token
        revoked = (await one.credentials.rotate(client, 0, BY)).retrieval.token
        await one.credentials.revoke_now(client, BY)
        for token in ("", "x", used.reveal()[:-1], "pkr_" + "0" * 49, used, replaced, revoked):
            told.add(await claim_fails(one, token))
        gone = (await one.credentials.rotate(client, 0, BY)).retrieval.token
        expired = (await one.register(other := Client(new_org_id()))).token
        await one.tenants.delete_org(client.org_id, BY)
        told.add(await claim_fails(one, gone))
        clock.shift_ms = 601_000
        told.add(await claim_fails(one, expired))
        assert other
        assert len(told) == 1

    async def test_a_token_does_not_work_for_the_next_life_of_a_client(
        self, one: Instance, client: Client
    ) -> None:
        """Deleted and created again within ten minutes, the old token is worthless."""
        old = await one.register(client)
        await one.tenants.delete_org(client.org_id, BY)
        new = await one.register(client)
        await claim_fails(one, old.token)
        assert await one.opens(
            client, (await one.credentials.claim(new.token.reveal(), BY)).client_secret
        )

    async def test_an_app_that_its_organisation_left_behind_has_nothing_to_claim(
        self, one: Instance
    ) -> None:
        """A crash can leave the app's item after its organisation is gone."""
        client = Client(new_org_id(), AppId("api"))
        retrieval = await one.register(client)
        left_over = await one.item(client)
        await one.tenants.delete_org(client.org_id, BY)
        await one.store.put(Put(CONFIG, left_over))
        await claim_fails(one, retrieval.token)
        with pytest.raises(NotFoundError):
            await one.credentials.rotate(client, 0, BY)

    async def test_a_hash_that_is_upgraded_meanwhile_does_not_stop_a_claim(
        self, store: Store, clock: ShiftedClock, client: Client
    ) -> None:
        """And the old secret keeps its grace, under the new hash."""
        before = instance(store, clock, Peppers(OLD_PEPPER))
        secret = await before.secret_of(client)
        rotation = await before.credentials.rotate(client, 1, BY)
        after = instance(store, clock, Peppers(NEW_PEPPER, OLD_PEPPER))
        assert await after.opens(client, secret)
        claimed = await after.credentials.claim(rotation.retrieval.token.reveal(), BY)
        assert claimed.old_secret_expires_at_epoch is not None
        newest = instance(store, clock, Peppers(NEW_PEPPER))
        assert await newest.opens(client, secret)
        assert await newest.opens(client, claimed.client_secret)


class TestRotating:
    async def test_the_old_secret_works_until_the_claim_and_then_for_the_grace(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """The grace begins at the claim, not at the rotation."""
        old = await one.secret_of(client)
        rotation = await one.credentials.rotate(client, 2, BY)
        assert rotation.grace_period_hours == 2
        clock.shift_ms = 500_000
        assert await one.opens(client, old)
        claimed = await one.credentials.claim(rotation.retrieval.token.reveal(), BY)
        assert claimed.old_secret_expires_at_epoch is not None
        left_secs = claimed.old_secret_expires_at_epoch - clock.now_epoch()
        assert 2 * 3600 - 5 <= left_secs <= 2 * 3600
        clock.shift_ms += 2 * HOUR_MS - 10_000
        assert await one.opens(client, old)
        assert await one.opens(client, claimed.client_secret)
        clock.shift_ms += 10_000
        assert not await one.opens(client, old)
        assert await one.opens(client, claimed.client_secret)

    async def test_without_a_grace_the_claim_ends_the_old_secret(
        self, one: Instance, client: Client
    ) -> None:
        old = await one.secret_of(client)
        rotation = await one.credentials.rotate(client, 0, BY)
        assert await one.opens(client, old)
        claimed = await one.credentials.claim(rotation.retrieval.token.reveal(), BY)
        assert claimed.old_secret_expires_at_epoch is None
        assert not await one.opens(client, old)
        assert "client_secret_previous_hash" not in await one.item(client)

    async def test_at_most_two_live_and_the_older_makes_room(
        self, one: Instance, client: Client
    ) -> None:
        """However often it is rotated, with the longest grace."""
        held = [await one.secret_of(client)]
        for _ in range(3):
            held.append(await one.rotated(client, 168))
            live = [secret for secret in held if await one.opens(client, secret)]
            assert live == held[-2:]

    async def test_a_later_rotation_without_grace_ends_both(
        self, one: Instance, client: Client
    ) -> None:
        """The older was waiting for its end, the newer is replaced."""
        first = await one.secret_of(client)
        second = await one.rotated(client, 168)
        third = await one.rotated(client, 0)
        opened = [await one.opens(client, secret) for secret in (first, second, third)]
        assert opened == [False, False, True]

    async def test_only_the_latest_token_can_be_claimed(
        self, one: Instance, client: Client
    ) -> None:
        first = await one.register(client)
        second = await one.credentials.rotate(client, 0, BY)
        await claim_fails(one, first.token)
        claimed = await one.credentials.claim(second.retrieval.token.reveal(), BY)
        assert await one.opens(client, claimed.client_secret)

    @pytest.mark.parametrize("hours", [-1, 169, 10**9, True, 1.0, "1", None])
    async def test_a_grace_is_0_to_168_hours(
        self, one: Instance, client: Client, hours: object
    ) -> None:
        await one.register(client)
        with pytest.raises(InvalidValueError) as error:
            await one.credentials.rotate(client, hours, BY)  # type: ignore[arg-type]
        assert error.value.field == "grace_period_hours"

    async def test_nobody_has_nothing_to_rotate(self, one: Instance, client: Client) -> None:
        """Also an app that is left over from an organisation that is gone."""
        with pytest.raises(NotFoundError):
            await one.credentials.rotate(client, 0, BY)
        await one.register(client)
        await one.tenants.delete_org(client.org_id, BY)
        with pytest.raises(NotFoundError):
            await one.credentials.rotate(client, 0, BY)


class TestGenerations:
    """Which tokens a claim leaves: those of the old secret go with it."""

    async def generation(self, one: Instance, client: Client) -> str:
        return (await one.tenants.find_policy(client.org_id, client.app_id)).token_generation

    @pytest.mark.parametrize("hours", [0, 1])
    async def test_a_claim_without_grace_begins_a_new_one(
        self, one: Instance, client: Client, hours: int
    ) -> None:
        """And one with a grace does not; the rotation itself never does."""
        await one.secret_of(client)
        first = await self.generation(one, client)
        rotation = await one.credentials.rotate(client, hours, BY)
        assert await self.generation(one, client) == first
        await one.credentials.claim(rotation.retrieval.token.reveal(), BY)
        assert (await self.generation(one, client) == first) == bool(hours)

    async def test_its_moment_never_goes_back(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """Also if an instance whose clock was ahead began the one before."""
        await one.secret_of(client)
        clock.shift_ms = 3_600_000
        await one.credentials.revoke_now(client, BY)
        ahead = await one.tenants.find_policy(client.org_id, client.app_id)
        clock.shift_ms = 0
        secret = await one.rotated(client, 0)
        after = await one.tenants.find_policy(client.org_id, client.app_id)
        assert after.token_generation != ahead.token_generation
        assert after.tokens_valid_from_epoch_ms == ahead.tokens_valid_from_epoch_ms
        assert await one.opens(client, secret)


class TestRevoking:
    async def test_revoking_ends_everything_at_once(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """Both secrets, a token to be claimed, and everything issued, in one transaction."""
        secrets = [await one.secret_of(client), await one.rotated(client, 168)]
        pending = (await one.credentials.rotate(client, 0, BY)).retrieval.token
        before = (await one.tenants.find_policy(client.org_id, client.app_id)).token_generation
        meter.clear()
        await one.credentials.revoke_now(client, BY)
        assert dict(meter.calls) == {"batch_get": 1, "get": 1, "transact": 1}
        assert [await one.opens(client, secret) for secret in secrets] == [False, False]
        await claim_fails(one, pending)
        after = (await one.tenants.find_policy(client.org_id, client.app_id)).token_generation
        assert after != before
        assert await one.opens(client, await one.rotated(client, 1))

    async def test_the_grace_can_be_ended_early(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """The old secret is gone with every token, the new one stays; again is no harm."""
        old, new = await one.secret_of(client), await one.rotated(client, 168)
        pending = (await one.credentials.rotate(client, 168, BY)).retrieval.token.reveal()
        before = (await one.tenants.find_policy(client.org_id, client.app_id)).token_generation
        meter.clear()
        await one.credentials.revoke_now(client, BY, previous_only=True)
        assert dict(meter.calls) == {"batch_get": 1, "get": 1, "transact": 1}
        assert [await one.opens(client, secret) for secret in (old, new)] == [False, True]
        after = (await one.tenants.find_policy(client.org_id, client.app_id)).token_generation
        assert after != before
        await one.credentials.revoke_now(client, BY, previous_only=True)
        newest = (await one.credentials.claim(pending, BY)).client_secret
        assert [await one.opens(client, secret) for secret in (new, newest)] == [True, True]

    async def test_nobody_has_nothing_to_revoke(self, one: Instance, client: Client) -> None:
        """And is not brought into being by trying."""
        with pytest.raises(NotFoundError):
            await one.credentials.revoke_now(client, BY)
        with pytest.raises(NotFoundError):
            await one.credentials.revoke_now(client, BY, previous_only=True)
        assert await one.store.get(CONFIG, config_key(client)) is None


class TestAuthenticating:
    async def test_it_tells_what_holds_at_this_moment(
        self, store: Store, clock: ShiftedClock, client: Client
    ) -> None:
        """Never from memory: a change or deletion elsewhere counts at once."""
        here, there = instance(store, clock), instance(store, clock)
        secret = await here.secret_of(client)
        await here.tenants.find_policy(client.org_id, client.app_id)
        await there.tenants.put_org(client.org_id, org_body(session_limit=9), BY)
        known = await here.credentials.authenticate(client.client_id, secret.reveal())
        assert known.policy.session_limit == 9
        await there.tenants.delete_org(client.org_id, BY)
        assert not await here.opens(client, secret)

    async def test_every_refusal_is_the_same(self, one: Instance, client: Client) -> None:
        """Unknown or malformed client, wrong, mistyped, empty, huge or unprintable secret."""
        secret = (await one.secret_of(client)).reveal()
        other = (await one.secret_of(stranger := Client(new_org_id()))).reveal()
        told = set()
        for name, text in [
            (client.client_id, other),
            (client.client_id, secret[:-1]),
            (client.client_id, secret.swapcase()),
            (client.client_id, ""),
            (client.client_id, "x" * 100_000),
            (client.client_id, "\ud800"),
            (client.client_id, "é" * 60),
            (client.client_id, "\0"),
            (client.client_id.upper(), secret),
            (f"{client.client_id} ", secret),
            ("", secret),
            ("\ud800", secret),
            (Client(new_org_id()).client_id, secret),
            (Client(client.org_id, AppId("other")).client_id, secret),
            (stranger.client_id, secret),
        ]:
            with pytest.raises(InvalidClientError) as error:
                await one.credentials.authenticate(name, text)
            told.add((str(error.value), error.value.code))
        assert len(told) == 1
        assert await one.opens(client, Secret(secret))

    async def test_a_secret_copied_to_another_client_opens_nothing(
        self, one: Instance, client: Client
    ) -> None:
        """An attacker who can write the table can't give one client the secret of another."""
        secret = await one.secret_of(client)
        await one.secret_of(other := Client(new_org_id()))
        stolen = (await one.item(client))["client_secret_hash"]
        copy = Update(CONFIG, config_key(other), (Set("client_secret_hash", stolen),))
        await one.store.update(copy)
        assert not await one.opens(other, secret)

    async def test_a_client_that_is_created_again_has_none_of_its_secrets(
        self, one: Instance, client: Client
    ) -> None:
        """It is another client of the same name."""
        old = [await one.secret_of(client), await one.rotated(client, 168)]
        await one.tenants.delete_org(client.org_id, BY)
        await one.register(client)
        assert [await one.opens(client, secret) for secret in old] == [False, False]


class TestCosts:
    """What each operation asks of the store."""

    async def test_a_claim_is_two_reads_and_one_transaction(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """The first one, and one that replaces a secret: the second read is that of the trail."""
        retrieval = await one.register(client)
        meter.clear()
        await one.credentials.claim(retrieval.token.reveal(), BY)
        assert dict(meter.calls) == {"get": 2, "transact": 1}
        meter.clear()
        rotation = await one.credentials.rotate(client, 24, BY)
        assert dict(meter.calls) == {"batch_get": 1, "get": 1, "transact": 1}
        meter.clear()
        await one.credentials.claim(rotation.retrieval.token.reveal(), BY)
        assert dict(meter.calls) == {"get": 2, "transact": 1}

    async def test_authenticating_is_one_read_whoever_it_is(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """Right, wrong or unknown: the store can't tell them apart."""
        secret = await one.secret_of(client)
        wrong = await one.secret_of(Client(new_org_id()))
        stranger = Client(new_org_id(), client.app_id)
        for who, text in ((client, secret), (client, wrong), (stranger, secret)):
            meter.clear()
            await one.opens(who, text)
            assert dict(meter.calls) == {"batch_get": 1}

    async def test_what_is_mistyped_costs_nothing(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """Every single wrong character of a secret or retrieval token is seen before the store."""
        retrieval = await one.register(client)
        token = retrieval.token.reveal()
        secret = (await one.credentials.claim(token, BY)).client_secret.reveal()
        meter.clear()
        for place in range(len(secret)):
            wrong = "A" if secret[place] != "A" else "B"
            with pytest.raises(InvalidClientError):
                await one.credentials.authenticate(
                    client.client_id, secret[:place] + wrong + secret[place + 1 :]
                )
            wrong = "A" if token[place] != "A" else "B"
            await claim_fails(one, token[:place] + wrong + token[place + 1 :])
        assert not meter.calls

    async def test_registration_is_the_one_transaction_of_the_creation(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """A crash can't come between a client and its retrieval token."""
        await one.tenants.put_org(client.org_id, org_body(), BY)
        if client.app_id is None:
            await one.tenants.delete_org(client.org_id, BY)
        meter.clear()
        await one.provision(client)
        assert meter.calls["transact"] == 1
        assert meter.calls.total() == 3


async def test_the_items_are_those_of_the_schema(one: Instance, client: Client) -> None:
    """With the token's digest for a key, and nothing readable anywhere."""
    token = (await one.register(client)).token.reveal()
    key = (await one.item(client))["secret_retrieval_key"]
    item = await stored(one.store, SECRET_RETRIEVAL_TOKENS, Key(key))
    assert token not in repr(item)
    assert {name: item[name] for name in ("org_id", "client_id", "secret_type", "used")} == {
        "org_id": client.org_id,
        "client_id": client.client_id,
        "secret_type": "org" if client.app_id is None else "app",
        "used": False,
    }
    assert item.get("app_id") == client.app_id
    assert item["expires_at_epoch"] == item["created_at_epoch"] + 600
    await one.credentials.claim(token, BY)
    used = await stored(one.store, SECRET_RETRIEVAL_TOKENS, Key(key))
    assert used["used"] is True
    assert used["used_at_epoch"] >= used["created_at_epoch"]
