"""One decision before a call, one settlement after it, on every store."""

import asyncio
import dataclasses
import uuid

import pytest

from authorizations.conftest import (
    COST_USD_PICOS,
    HELD_USD_PICOS,
    USD,
    Instance,
    a_budget,
    a_capture,
    a_strict_policy,
)
from metering.conftest import CATALOGUE, ECONOMY, PREMIUM, STANDARD, a_policy, a_usage
from minting import minted
from pricekeeper.authorizations import Authorization, Authorized, State
from pricekeeper.authorizations.authorization import Grant, GrantTerms
from pricekeeper.authorizations.expiry import Swept
from pricekeeper.authorizations.settler import OpenList
from pricekeeper.budgets import Balance, accounts_of
from pricekeeper.errors import (
    AuthorizationDeniedError,
    ConflictError,
    InvalidValueError,
    NotFoundError,
    Obstacle,
    RequestIdReusedError,
    StoreUnavailableError,
    UnreadableItemError,
)
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.log import OrgLog
from pricekeeper.ledger.position import begin_chapter
from pricekeeper.metering import Outcome, Recorded, Refused, org_day
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.moments import moment_key
from pricekeeper.storage import Put, Store
from pricekeeper.tenants import Enforcement, Freeze, Policy, RateLimit, Window
from pricekeeper.values import AppId
from selection.conftest import SettableClock


async def balances(instance: Instance, policy: Policy, clock: SettableClock) -> dict[str, Balance]:
    accounts = accounts_of(policy, clock.now_ms())
    found = await instance.ledger.read(accounts)
    return {account.name: balance for account, balance in found.items()}


async def test_a_hold_becomes_what_the_call_cost(instance: Instance, clock: SettableClock) -> None:
    """The worst case is held, the cost is spent, and the rest is there again."""
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy)
    held = await balances(instance, policy, clock)
    captured = await instance.capture(policy, granted.authorization.id)
    spent = await balances(instance, policy, clock)
    assert held == {"daily": Balance(HELD_USD_PICOS, HELD_USD_PICOS, 0)}
    assert captured.recorded.receipt.cost_usd_picos == COST_USD_PICOS
    assert spent == {"daily": Balance(COST_USD_PICOS, 0, 0)}
    assert captured.authorization.state is State.CAPTURED


async def test_a_captured_call_is_in_the_totals_once(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy)
    captures = [await instance.capture(policy, granted.authorization.id) for _ in range(3)]
    totals = await instance.metering.read_totals(
        policy.scope_key, [PREMIUM], captures[0].recorded.receipt.org_day, live=True
    )
    assert [one.is_duplicate for one in captures] == [False, True, True]
    assert {one.recorded.receipt.cost_usd_picos for one in captures} == {COST_USD_PICOS}
    assert totals[PREMIUM].requests == 1
    assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
    assert (await balances(instance, policy, clock))["daily"] == Balance(COST_USD_PICOS)


async def test_another_capture_of_the_same_authorization_is_refused(instance: Instance) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy)
    await instance.capture(policy, granted.authorization.id)
    with pytest.raises(RequestIdReusedError):
        await instance.capture(policy, granted.authorization.id, output_tokens=501)


async def test_a_void_gives_everything_back(instance: Instance, clock: SettableClock) -> None:
    limits = {"*": {"rpm": RateLimit(10, 10, 60_000), "tpm": RateLimit(10_000, 10_000, 60_000)}}
    policy = a_policy(budgets=(a_budget(),), rate_limits=limits)
    first = await instance.authorize(policy)
    for _ in range(2):
        await instance.authorizations.void(policy, first.authorization.id, "no route")
    again = await instance.authorize(policy)
    assert first.granted is not None
    assert again.granted is not None
    assert again.granted.limits["tpm"].remaining == first.granted.limits["tpm"].remaining == 8_000
    assert again.granted.limits["rpm"].remaining == 9
    assert await balances(instance, policy, clock) == {
        "daily": Balance(HELD_USD_PICOS, HELD_USD_PICOS, 0)
    }
    with pytest.raises(ConflictError):
        await instance.capture(policy, first.authorization.id)


async def test_a_capture_settles_the_tokens_that_were_reserved(instance: Instance) -> None:
    limits = {"*": {"tpm": RateLimit(10_000, 1_000, 86_400_000)}}
    policy = a_policy(rate_limits=limits)
    first = await instance.authorize(policy)
    await instance.capture(policy, first.authorization.id)  # 1,000 in, 500 out of 1,000
    second = await instance.authorize(policy)
    assert second.granted is not None
    assert second.granted.limits["tpm"].remaining == 10_000 - 1_500 - 2_000


async def test_a_budget_is_never_overspent_by_those_who_ask_at_once(
    store: Store, clock: SettableClock
) -> None:
    """Twenty calls fit; two hundred ask, of three instances, at the same time."""
    instances = [Instance(store, clock) for _ in range(3)]
    policy = a_policy(budgets=(a_budget(20 * HELD_USD_PICOS // 1_000_000),))
    asked = [instances[n % 3].authorize(policy) for n in range(200)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    granted = [one for one in outcomes if not isinstance(one, BaseException)]
    denied = [one for one in outcomes if isinstance(one, AuthorizationDeniedError)]
    assert (len(granted), len(denied)) == (20, 180)
    assert await balances(instances[0], policy, clock) == {
        "daily": Balance(20 * HELD_USD_PICOS, 20 * HELD_USD_PICOS, 0)
    }
    await asyncio.gather(
        *(
            instances[(n + 1) % 3].capture(policy, one.authorization.id)
            for n, one in enumerate(granted)
        )
    )
    assert await balances(instances[0], policy, clock) == {"daily": Balance(20 * COST_USD_PICOS)}
    for one in instances:
        await one.close()


async def test_the_same_id_is_the_same_grant(instance: Instance, clock: SettableClock) -> None:
    policy = a_policy(budgets=(a_budget(),))
    asked_as = str(uuid.uuid4())
    first = await instance.authorize(policy, authorization_id=asked_as)
    again = await instance.authorize(policy, authorization_id=asked_as)
    assert first.granted is not None
    assert again.granted is None
    assert again.authorization == first.authorization
    assert again.authorization.shown_id == asked_as
    with pytest.raises(ConflictError):
        await instance.authorize(policy, authorization_id=asked_as, input_tokens=999)
    assert (await balances(instance, policy, clock))["daily"].held == HELD_USD_PICOS
    captured = await instance.capture(policy, asked_as)
    assert captured.recorded.request_id == asked_as


async def test_the_moment_of_a_failed_usage_record_lives_as_long_as_the_grant_of_its_id(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """Else the same id would be granted again days later."""
    policy, asked_as = a_policy(budgets=(a_budget(),)), str(uuid.uuid4())
    await instance.metering.poster.moments.mint(policy.org_id, [asked_as])
    await instance.authorize(policy, authorization_id=asked_as)
    moment = await store.get(*moment_key(policy.org_id, asked_as))
    assert moment is not None
    lives_secs = moment["expires_at_epoch"] - clock.now_ms() // 1000
    assert lives_secs >= RETENTION_DAYS * 86_400


async def test_an_unreadable_moment_denies_only_the_call_of_its_id(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """Another call of the same sheet is granted."""
    policy, ids = a_policy(budgets=(a_budget(),)), [str(uuid.uuid4()) for _ in range(2)]
    await instance.authorize(policy)
    table, key = moment_key(policy.org_id, ids[0])
    await store.put(Put(table, {**key.attributes, "minted_ms": "noon"}))
    asked = (instance.authorize(policy, authorization_id=one) for one in ids)
    bad, good = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(bad, UnreadableItemError)
    assert isinstance(good, Authorized)


async def test_a_repeat_is_not_denied_by_its_own_hold(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """One after the other, at another instance, at the same time, and after a freeze."""
    policy = a_policy(budgets=(a_budget(20_000),))
    ids = [str(uuid.uuid4()) for _ in range(2)]
    first = await instance.authorize(policy, authorization_id=ids[0])
    frozen = dataclasses.replace(policy, freeze=Freeze("ORG", "leaked", 1))
    for asked, whose in ((instance, policy), (Instance(store, clock), policy), (instance, frozen)):
        again = await asked.authorize(whose, authorization_id=ids[0])
        assert again.authorization == first.authorization
    await instance.void(policy, ids[0])
    both = await asyncio.gather(
        *(instance.authorize(policy, authorization_id=ids[1]) for _ in range(3))
    )
    assert len({one.authorization.id for one in both}) == 1
    assert (await balances(instance, policy, clock))["daily"].held == HELD_USD_PICOS


async def test_an_id_of_ours_is_known_again(instance: Instance) -> None:
    policy = a_policy(budgets=(a_budget(),))
    first = await instance.authorize(policy)
    again = await instance.authorize(policy, authorization_id=first.authorization.id)
    assert again.authorization == first.authorization


@pytest.fixture(params=[4, 7, 8])
def asked_as(request: pytest.FixtureRequest, clock: SettableClock) -> str | None:
    """An id that the caller gives, without time and with it; ``None`` for one that we make."""
    if request.param == 8:
        return None
    return minted(clock.now_ms()) if request.param == 7 else str(uuid.uuid4())


async def test_a_usage_record_under_the_id_of_an_authorization_is_its_capture(
    instance: Instance, clock: SettableClock, asked_as: str | None
) -> None:
    """It counts once and releases the hold; a capture of the same usage is a duplicate."""
    policy = a_policy(budgets=(a_budget(),))
    made = await instance.authorize(policy, authorization_id=asked_as)
    shown_id = made.authorization.shown_id
    first = await instance.record(policy, a_usage(shown_id))
    assert first.outcome is Outcome.ACCEPTED
    assert first.receipt.cost_usd_picos == COST_USD_PICOS
    assert await balances(instance, policy, clock) == {"daily": Balance(COST_USD_PICOS, 0, 0)}
    assert (await instance.record(policy, a_usage(shown_id))).outcome is Outcome.DUPLICATE
    assert (await instance.capture(policy, shown_id)).is_duplicate
    for change in ({"output_tokens": 1}, {"model_label": STANDARD}):
        with pytest.raises(RequestIdReusedError):
            await instance.record(policy, a_usage(shown_id, **change))
    found = await instance.authorizations.find(policy, shown_id)
    assert found.state is State.CAPTURED


async def test_a_usage_record_after_the_capture_is_a_duplicate(
    instance: Instance, clock: SettableClock, asked_as: str | None
) -> None:
    """Alone and among others, which count."""
    policy = a_policy(budgets=(a_budget(),))
    made = await instance.authorize(policy, authorization_id=asked_as)
    shown_id = made.authorization.shown_id
    await instance.capture(policy, shown_id)
    other = a_usage(minted(clock.now_ms() + 1))
    answers = await instance.authorizations.recording.record_many(
        policy, [a_usage(shown_id), other]
    )
    assert [one.outcome for one in answers if isinstance(one, Recorded)] == [
        Outcome.DUPLICATE,
        Outcome.ACCEPTED,
    ]
    assert await balances(instance, policy, clock) == {"daily": Balance(2 * COST_USD_PICOS, 0, 0)}
    changed = [a_usage(shown_id, input_tokens=1)]
    (refused,) = await instance.authorizations.recording.record_many(policy, changed)
    assert isinstance(refused, Refused)
    assert refused.code == "REQUEST_ID_REUSED"


async def test_an_id_stands_for_one_thing_in_an_organisation(
    instance: Instance, clock: SettableClock
) -> None:
    """That of a usage record authorizes nothing, and another app's authorization counts nothing."""
    policy = a_policy(budgets=(a_budget(),))
    for request_id in (minted(clock.now_ms()), str(uuid.uuid4())):
        await instance.record(policy, a_usage(request_id))
        with pytest.raises(ConflictError):
            await instance.authorize(policy, authorization_id=request_id)
        assert (await instance.record(policy, a_usage(request_id))).outcome is Outcome.DUPLICATE
    other = dataclasses.replace(policy, client=policy.client._replace(app_id=AppId("other")))
    for given in (minted(clock.now_ms() + 1), str(uuid.uuid4()), None):
        made = await instance.authorize(policy, authorization_id=given)
        with pytest.raises(RequestIdReusedError):
            await instance.record(other, a_usage(made.authorization.shown_id))
    with pytest.raises(InvalidValueError, match="version 8"):
        await instance.record(policy, a_usage("019a8c3f-1b2c-8000-8000-0123456789ab"))


async def test_nobody_gives_an_id_of_the_kind_that_we_make(
    instance: Instance, clock: SettableClock
) -> None:
    """Not even one that we are about to make, which is no secret: it would stand for two calls."""
    policy = a_policy(budgets=(a_budget(),))
    first = await instance.authorize(policy)
    own_id = first.authorization.id
    following = f"{own_id[:20]}{int(own_id[20:22], 16) + 1:02x}{own_id[22:]}"
    for given in (following, "019a8c3f-1b2c-8000-8000-0123456789ab"):
        with pytest.raises(InvalidValueError, match="version 8"):
            await instance.authorize(policy, authorization_id=given)
    second = await instance.authorize(policy)
    assert second.authorization.id == following
    again = await instance.authorize(policy, authorization_id=own_id.upper())
    assert again.authorization.id == own_id
    held = 2 * HELD_USD_PICOS
    assert await balances(instance, policy, clock) == {"daily": Balance(held, held, 0)}


async def test_a_denial_names_everything_that_denies(
    instance: Instance, clock: SettableClock
) -> None:
    """Budgets of the app and of its organisation, a strict quota and a limit, with all amounts."""
    policy = a_strict_policy(
        quotas={PREMIUM: 17_000, STANDARD: USD, ECONOMY: USD},
        budgets=(a_budget(16_000), a_budget(USD, name="wide")),
        org_budgets=(a_budget(15_000, name="monthly", window=Window.MONTH),),
        rate_limits={"*": {"tpm": RateLimit(1_500, 1_500, 60_000)}},
    )
    with pytest.raises(AuthorizationDeniedError) as denied:
        await instance.authorize(policy)
    found = {one.name: one for one in denied.value.denied_by}
    assert found.keys() == {"daily", "monthly", "quota-premium", "tpm"}
    assert found["daily"].kind is Obstacle.BUDGET
    assert found["daily"].scope == "APP"
    assert found["daily"].needed == HELD_USD_PICOS
    assert found["daily"].remaining == 16_000 * 1_000_000
    assert found["daily"].never
    assert found["monthly"].scope == "ORG"
    assert found["quota-premium"].label == PREMIUM
    assert found["tpm"].needed == 2_000
    assert found["tpm"].never
    assert (await balances(instance, policy, clock))["wide"] == Balance()


async def test_auto_falls_back_and_says_why(instance: Instance) -> None:
    policy = a_strict_policy(quotas={PREMIUM: 17_999, STANDARD: USD, ECONOMY: USD})
    granted = await instance.authorize(policy, model="auto")
    considered = granted.authorization.grant.considered
    assert granted.authorization.grant.terms.label == STANDARD
    assert [one.label for one in considered] == [PREMIUM, STANDARD]
    assert "quota-premium" in considered[0].because
    assert considered[1].because == ""


async def test_a_label_does_not_fall_back_unless_it_is_asked_to(instance: Instance) -> None:
    policy = a_strict_policy(quotas={PREMIUM: 17_999, STANDARD: USD, ECONOMY: USD})
    with pytest.raises(AuthorizationDeniedError):
        await instance.authorize(policy, model=PREMIUM)
    granted = await instance.authorize(policy, model=PREMIUM, fallback=True)
    assert granted.authorization.grant.terms.label == STANDARD


async def test_a_model_id_means_its_label(instance: Instance) -> None:
    policy = a_policy()
    granted = await instance.authorize(policy, model="anthropic.claude-3-5-haiku-20241022-v1:0")
    assert granted.authorization.grant.terms.label == STANDARD


async def test_a_call_is_fitted_into_what_is_left(instance: Instance) -> None:
    policy = a_policy(budgets=(a_budget(10_000),))
    granted = await instance.authorize(
        policy, max_output_tokens=64_000, allow_lower_max_output=True
    )
    assert granted.authorization.grant.max_output_tokens == (10_000 - 3_000) // 15
    with pytest.raises(AuthorizationDeniedError) as denied:
        await instance.authorize(policy, max_output_tokens=64_000, allow_lower_max_output=True)
    (one,) = denied.value.denied_by
    assert one.retry_after_ms is not None  # what the first does not use comes back
    await instance.capture(policy, granted.authorization.id, output_tokens=10)
    again = await instance.authorize(policy, max_output_tokens=64_000, allow_lower_max_output=True)
    assert again.authorization.grant.max_output_tokens == (10_000 - 3_150 - 3_000) // 15


async def test_a_prompt_is_held_at_most_at_what_the_model_can_read(instance: Instance) -> None:
    """A guess by bytes may be far above that; Bedrock refuses such a prompt, and bills nothing."""
    limits = {"*": {"tpm": RateLimit(10**9, 10**6, 86_400_000)}}
    policy = a_policy(budgets=(a_budget(100 * USD),), rate_limits=limits)
    window = CATALOGUE.model(PREMIUM).context_window_tokens
    made = await instance.authorize(policy, input_tokens=10**9, max_output_tokens=1_000)
    assert made.authorization.grant.held_usd_picos == window * 3_000_000 + 1_000 * 15_000_000
    assert made.granted is not None
    assert made.granted.limits["tpm"].remaining == 10**9 - window - 1_000
    within = await instance.authorize(policy, input_tokens=window - 1, max_output_tokens=1_000)
    assert (
        within.authorization.grant.held_usd_picos == (window - 1) * 3_000_000 + 1_000 * 15_000_000
    )
    with pytest.raises(InvalidValueError, match="output_tokens"):
        await instance.authorize(policy, max_output_tokens=10**9)


async def test_usage_that_was_never_authorized_debits_the_same_budgets(
    instance: Instance, clock: SettableClock
) -> None:
    """A budget may go below zero with it; then nothing is authorized."""
    policy = a_policy(budgets=(a_budget(25_000),))
    for _ in range(3):
        await instance.metering.record(policy, a_usage())
    assert (await balances(instance, policy, clock))["daily"] == Balance(3 * COST_USD_PICOS)
    with pytest.raises(AuthorizationDeniedError) as denied:
        await instance.authorize(policy, input_tokens=1, max_output_tokens=1)
    (one,) = denied.value.denied_by
    assert one.remaining == 25_000 * 1_000_000 - 3 * COST_USD_PICOS < 0
    assert one.resets_at_ms is not None


async def test_a_budget_made_in_the_middle_of_its_window_knows_what_was_spent(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy()
    await instance.metering.record(policy, a_usage())
    first = await instance.authorize(policy)
    await instance.capture(policy, first.authorization.id)
    budgets = (a_budget(), a_budget(name="std", labels=(STANDARD,)))
    later = a_policy(org_id=policy.org_id, budgets=budgets)
    assert await balances(instance, later, clock) == {
        "daily": Balance(2 * COST_USD_PICOS),
        "std": Balance(),
    }


async def test_what_nobody_settles_is_charged_at_its_hold(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy, hold_secs=10)
    clock.advance_ms(9_999)
    assert await instance.authorizations.expiry.expire_due() == 0
    clock.advance_ms(1)
    assert await instance.authorizations.expiry.expire_due() == 1
    found = await instance.authorizations.find(policy, granted.authorization.id)
    assert found.state is State.UNSETTLED
    assert await balances(instance, policy, clock) == {
        "daily": Balance(HELD_USD_PICOS, 0, HELD_USD_PICOS)
    }
    listed = await instance.authorizations.list_unfinished(policy, [State.UNSETTLED])
    assert [one.id for one in listed] == [granted.authorization.id]
    clock.advance_ms(24 * 3_600_000)
    await instance.capture(policy, granted.authorization.id)
    accounts = accounts_of(policy, clock.now_ms() - 24 * 3_600_000 - 10_000)
    assert list((await instance.ledger.read(accounts)).values()) == [Balance(COST_USD_PICOS)]


async def test_a_capture_a_day_after_it_expired_is_refused(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy, hold_secs=10)
    clock.advance_ms(10_000)
    await instance.authorizations.expiry.expire_due()
    clock.advance_ms(24 * 3_600_000 + 1)
    with pytest.raises(ConflictError):
        await instance.capture(policy, granted.authorization.id)


async def test_a_sweep_finds_what_a_dead_process_has_left(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await Instance(store, clock).authorize(policy, hold_secs=60)
    clock.advance_ms(60_000)
    assert await instance.authorizations.expiry.sweep() == Swept()  # its region is not quiet yet
    clock.advance_ms(300_000)
    assert await instance.authorizations.expiry.sweep() == Swept(expired=1)
    found = await instance.authorizations.find(policy, granted.authorization.id)
    assert found.state is State.UNSETTLED
    assert (await balances(instance, policy, clock))["daily"].unsettled == HELD_USD_PICOS


async def test_an_extended_authorization_expires_later(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy, hold_secs=10)
    clock.advance_ms(5_000)
    extended = await instance.authorizations.extend(policy, granted.authorization.id, 60)
    assert extended.expires_at_ms == clock.now_ms() + 60_000
    clock.advance_ms(10_000)
    assert await instance.authorizations.expiry.expire_due() == 0
    clock.advance_ms(50_000)
    assert await instance.authorizations.expiry.expire_due() == 1


async def test_a_capture_after_midnight_settles_in_the_day_of_its_authorization(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),), timezone="UTC")
    clock.set("2030-01-15T23:59:59Z")
    granted = await instance.authorize(policy)
    before = accounts_of(policy, clock.now_ms())
    clock.set("2030-01-16T00:00:30Z")
    captured = await instance.capture(policy, granted.authorization.id)
    assert captured.recorded.receipt.org_day == "20300115"
    assert list((await instance.ledger.read(before)).values()) == [Balance(COST_USD_PICOS)]
    assert await balances(instance, policy, clock) == {"daily": Balance()}


async def test_a_capture_above_its_hold_is_counted_in_full(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(18_000),))
    granted = await instance.authorize(policy)
    captured = await instance.capture(policy, granted.authorization.id, output_tokens=2_000)
    assert captured.overrun_usd_picos == 1_000 * 15_000_000
    assert (await balances(instance, policy, clock))["daily"].spent == 33_000 * 1_000_000


async def test_a_soft_budget_counts_and_denies_nobody(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(1, enforcement=Enforcement.SOFT),))
    granted = await instance.authorize(policy)
    assert (await balances(instance, policy, clock))["daily"].held == HELD_USD_PICOS
    assert granted.authorization.grant.held_usd_picos == HELD_USD_PICOS


async def test_each_value_of_a_tag_has_a_budget(instance: Instance) -> None:
    """Calls without the tag share one budget."""
    policy = a_policy(
        tag_keys=("team",),
        org_budgets=(a_budget(20_000, name="team", per_tag="team"),),
    )
    await instance.authorize(policy, tags={"team": "search"})
    with pytest.raises(AuthorizationDeniedError):
        await instance.authorize(policy, tags={"team": "search"})
    await instance.authorize(policy, tags={"team": "ads"})
    await instance.authorize(policy)
    with pytest.raises(AuthorizationDeniedError):
        await instance.authorize(policy, tags={"other": "x"})


async def test_a_dry_run_takes_nothing(instance: Instance, clock: SettableClock) -> None:
    policy = a_policy(
        budgets=(a_budget(18_000),), rate_limits={"*": {"rpm": RateLimit(1, 1, 60_000)}}
    )
    for _ in range(3):
        tried = await instance.authorize(policy, dry_run=True)
        assert tried.granted is not None
    assert await balances(instance, policy, clock) == {"daily": Balance()}
    await instance.authorize(policy)
    with pytest.raises(AuthorizationDeniedError) as denied:
        await instance.authorize(policy, dry_run=True)
    assert {one.kind for one in denied.value.denied_by} == {Obstacle.BUDGET, Obstacle.LIMIT}


async def test_another_apps_authorization_does_not_exist(instance: Instance) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = await instance.authorize(policy)
    other = a_policy(org_id=policy.org_id, app_id=AppId("other"))
    for call in (
        instance.authorizations.find(other, granted.authorization.id),
        instance.authorizations.capture(other, granted.authorization.id, a_capture()),
        instance.authorizations.void(other, granted.authorization.id, None),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_a_caller_that_leaves_gets_nothing_held(
    instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    await instance.authorize(policy, dry_run=True)  # opens the account
    left = 0
    for turns in range(40):
        task = asyncio.create_task(instance.authorize(policy))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        left += isinstance(outcome, asyncio.CancelledError)
        if isinstance(outcome, Authorized):
            await instance.authorizations.void(policy, outcome.authorization.id, None)
        await instance.authorizations.close()
        assert await balances(instance, policy, clock) == {"daily": Balance()}
    assert left > 3


async def test_a_caller_that_leaves_when_its_decision_fails_has_left(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled with any failure."""
    task: asyncio.Task[Authorized]

    async def fail_and_cancel(*_: object) -> None:
        asyncio.get_running_loop().call_soon(task.cancel)
        raise StoreUnavailableError("at that moment")

    monkeypatch.setattr(OrgLog, "prepare", fail_and_cancel)
    task = asyncio.create_task(instance.authorize(a_policy()))
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)


async def test_captures_under_ids_of_callers_are_in_the_totals_of_every_lane(
    instance: Instance, clock: SettableClock
) -> None:
    """Also if the worker of the organisation was made to expire something."""
    policy = a_policy(agg_shard_count=64)
    due = await instance.authorize(policy, hold_secs=10)
    clock.advance_ms(10_000)
    await instance.authorizations.expiry.expire_due()
    ids = [minted(clock.now_ms() + 16 * page) for page in range(8)]
    for one in ids:
        await instance.authorize(policy, authorization_id=one)
        await instance.capture(policy, one)
    day = org_day(policy.timezone, clock.now_ms())
    totals = await instance.metering.read_totals(policy.scope_key, [PREMIUM], day, live=True)
    assert totals[PREMIUM].requests == len(ids)
    assert due.authorization.id not in ids


def test_settled_authorizations_do_not_fill_the_memory() -> None:
    """They are forgotten before their time comes: an hour of a busy service is millions."""
    listed, book = OpenList(), Book("org", begin_chapter(0, 0))
    for number in range(20_000):
        one = Authorization(f"{number:08x}", _A_GRANT, State.OPEN, 3_600_000 + number)
        listed.add("org", one, book)
        if number % 100:
            listed.remove(one.id)
    assert len(listed) == 200
    assert len(listed._heap) <= 2 * len(listed) + 1_001
    assert len(listed.take_due(10**9)) == 200


_A_GRANT = Grant(GrantTerms("client", "app", "premium", (), (), ()), b"", "NORMAL", 1, 1, 1, 0, {})
