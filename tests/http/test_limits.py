"""The API limits, by their own limiter: how much, for which caller, and with which answer."""

import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from attribution import PERMIT
from http_fixtures import CLAIM, ENVIRONMENT, FORCED, ORG, Api, Reply, Tenant, usage
from minting import minted
from pricekeeper.clock import ManualClock
from pricekeeper.credentials.secret import CLIENT_SECRET, mint
from pricekeeper.errors import RateLimitExceededError, SettingsError
from pricekeeper.http.limits import HOLD_MS, IN_MEMORY, ApiLimits, network_of
from pricekeeper.limiter import Limiter
from pricekeeper.settings import API_LIMITS_PER_MINUTE, MEMORY, SqliteLocation, read_settings
from pricekeeper.storage import open_store
from pricekeeper.telemetry import StoreMeter
from scraping import scrape, until_prices_are_published
from served import served
from serving import running_server

SETTING = "PRICEKEEPER_API_RATE_LIMITS"
NARROW = {"token": 4, "claim": 4, "usage": 3, "batch": 2, "force_check": 2, "failures": 6}
TOLD = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    """A tenant of a server with default limits."""
    with served(tmp_path_factory.mktemp("default"), {SETTING: "on"}) as api:
        yield Tenant(api).register()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    """A tenant of a server that allows a few requests a minute."""
    limits = ",".join(f"{kind}={count}" for kind, count in NARROW.items())
    with served(tmp_path_factory.mktemp("narrow"), {SETTING: limits}) as api:
        yield Tenant(api).register()


def until_refused(kind: str, attempt: Callable[[], Reply]) -> tuple[list[int], Reply]:
    """Try until it is too often, however slow we are: the answers, and the refusal."""
    statuses: list[int] = []
    for _ in range(2 * NARROW[kind]):
        reply = attempt()
        if reply.status == 429:
            return statuses, reply
        statuses.append(reply.status)
    raise AssertionError(f"{kind} was not refused: {statuses}")


def check_refusal(reply: Reply, available: int = 0) -> None:
    """Check that a 429 says which limit, how much is there, and until when."""
    assert reply.status == 429
    assert reply.json["code"] == "RATE_LIMIT_EXCEEDED"
    violation = reply.json["violations"][0]
    assert (violation["limit"], violation["requested"]) == ("requests", 1)
    assert violation["available"] == available
    assert 0 < violation["retry_after_ms"] <= 60_000
    assert int(reply.headers["retry-after"]) == -(-violation["retry_after_ms"] // 1000)
    limit, remaining, reset = (int(reply.headers[name]) for name in TOLD)
    assert remaining == 0 < limit
    assert 0 < reset <= 60


def test_the_defaults_are_the_documented_ones() -> None:
    """A minute, for each client or key; what apps send all day is so wide that none meets it."""
    often = {"usage": 360_000, "batch": 6_000, "limits": 120_000, "selection": 6_000}
    money = {"authorize": 120_000, "capture": 360_000, "force_check": 600, "reports": 1_200}
    few = dict.fromkeys(("token", "refresh", "revoke", "provisioning", "aggregates"), 300)
    expected = {**often, **money, **few, "claim": 60, "failures": 60, "events": 120}
    assert expected == API_LIMITS_PER_MINUTE
    assert read_settings({}).api_limits_per_minute == API_LIMITS_PER_MINUTE


def test_the_setting_changes_adds_and_removes() -> None:
    """What it does not name stays; 0 takes a limit away, off takes all."""
    changed = read_settings({SETTING: "token=2, usage=600,claim=0"}).api_limits_per_minute
    assert changed == {
        **{kind: count for kind, count in API_LIMITS_PER_MINUTE.items() if kind != "claim"},
        "token": 2,
        "usage": 600,
    }
    assert read_settings({SETTING: "off"}).api_limits_per_minute == {}
    assert read_settings({SETTING: "on"}).api_limits_per_minute == API_LIMITS_PER_MINUTE
    for bad in ("tokens=2", "token=", "token=-1", "token=2x", "token", "token=1.5"):
        with pytest.raises(SettingsError, match=SETTING):
            read_settings({SETTING: bad})


def test_limited_answers_say_how_much_is_left(default: Tenant) -> None:
    """On every kind of request that is limited, with the default of its kind."""
    api, app_token = default.api, default.app_token
    granted = default.try_login()
    made = api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG)
    asked = {"input_tokens": 10, "max_output_tokens": 10}
    replies = {
        "token": granted,
        "refresh": api.refresh(granted.json["refresh_token"]),
        "revoke": api.call("POST", "/auth/revoke", {"token": "none"}, token=app_token),
        "claim": api.claim(made),
        "provisioning": api.provision("GET", default.org),
        "aggregates": default.ask("GET", "aggregates/today"),
        "selection": default.select(),
        "force_check": default.select(FORCED),
        "usage": default.record(),
        "batch": default.record_many(usage()),
        "limits": default.ask("GET", "limits"),
        "authorize": (authorized := default.ask("POST", "authorizations", asked)),
        "capture": default.ask(
            "POST", f"authorizations/{authorized.json['authorization_id']}/void"
        ),
    }
    for kind, reply in replies.items():
        assert reply.status in (200, 201, 202, 204, 207), kind
        limit, remaining, reset = (int(reply.headers[name]) for name in TOLD)
        assert limit == API_LIMITS_PER_MINUTE[kind]
        assert 0 <= remaining <= limit  # a slow answer finds it refilled
        assert 0 <= reset <= 60


def test_what_is_left_goes_down(default: Tenant) -> None:
    """One failure less each time, for any counter; a kind with a larger limit goes in blocks."""
    replies = [default.try_login("wrong") for _ in range(3)]
    left = [int(reply.headers["ratelimit-remaining"]) for reply in replies]
    assert left == [left[0], left[0] - 1, left[0] - 2]


@pytest.mark.parametrize("kind", ["usage", "batch", "force_check"])
def test_a_flood_of_what_apps_send_all_day_is_refused(narrow: Tenant, kind: str) -> None:
    """Each kind has a limit of its own, and a refused record is not lost: it is sent again."""
    record = usage()
    requests: dict[str, Callable[[], Reply]] = {
        "usage": lambda: narrow.record(record),
        "batch": lambda: narrow.record_many(record),
        "force_check": lambda: narrow.select(FORCED),
    }
    statuses, refused = until_refused(kind, requests[kind])
    assert len(statuses) >= NARROW[kind]
    assert set(statuses) <= {200, 202, 207}
    check_refusal(refused)
    assert narrow.select().status == 200


def test_limits_in_memory_ask_the_store_for_nothing(tmp_path: Path) -> None:
    """A record is one transaction, with its limit as without. The limits in the store are off."""
    stored = [name for name in API_LIMITS_PER_MINUTE if name not in IN_MEMORY]
    with served(tmp_path, {SETTING: ",".join(f"{name}=0" for name in stored)}) as api:
        tenant = Tenant(api).register()
        assert tenant.record().status == 202
        before = scrape(api)
        for _ in range(20):
            record = usage(request_id=minted(time.time_ns() // 1_000_000))
            assert tenant.record(record).status == 202
        after = scrape(api)
    moved = {name: value - before.get(name, 0) for name, value in after.items()}
    assert moved['pricekeeper_store_calls_total{call="update"}'] == 20  # the records' pages
    assert moved['pricekeeper_api_limit_decisions_total{limit="usage",outcome="granted"}'] == 20


def test_claims_beyond_the_limit_are_refused(narrow: Tenant) -> None:
    """Guessing retrieval tokens is limited; the refusal has the body of every other problem."""
    statuses, refused = until_refused(
        "claim", lambda: narrow.api.call("POST", CLAIM, {"token": "pkr_guess"})
    )
    assert set(statuses) == {404}
    assert refused.code == "RATE_LIMIT_EXCEEDED"
    check_refusal(refused)


def test_logins_beyond_the_limit_are_refused(narrow: Tenant) -> None:
    """With OAuth's error body, and ours beside it; a correct secret does not help."""
    statuses, refused = until_refused("token", narrow.try_login)
    assert set(statuses) == {200}
    check_refusal(refused)
    assert refused.json["error"] == "temporarily_unavailable"
    assert refused.json["error_description"]
    assert refused.headers["cache-control"] == "no-store"


def test_each_client_has_logins_and_refreshes_of_its_own(tmp_path: Path) -> None:
    """What one has used up is there for another, at one address too; registering was a login."""
    with served(tmp_path, {SETTING: "token=3,refresh=1,revoke=1"}) as api:
        one, other = (Tenant(api).register() for _ in range(2))
        replies = [[tenant.try_login() for _ in range(3)] for tenant in (one, other)]
        assert [[reply.status for reply in each] for each in replies] == [[200, 200, 429]] * 2
        for granted, *_ in replies:
            assert api.refresh(granted.json["refresh_token"]).status == 200
            check_refusal(api.refresh(granted.json["refresh_token"]))
            token, body = granted.json["access_token"], {"token": "none"}
            assert api.call("POST", "/auth/introspect", body, token=token).status == 200
            check_refusal(api.call("POST", "/auth/revoke", body, token=token))


def test_a_flood_of_guesses_does_not_reach_the_store(tmp_path: Path) -> None:
    """A barred address is refused from memory; a well-formed secret costs one read, and no more."""
    with served(tmp_path, {SETTING: "failures=1"}) as api:

        def guess(secret: str) -> Reply:
            client = {"client_id": f"org-{uuid.uuid4()}", "client_secret": secret}
            return api.call("POST", "/auth/token", {"grant_type": "client_credentials", **client})

        replies = [guess("pks_guess") for _ in range(8)]
        assert replies[0].status == 401
        check_refusal(replies[-1])
        secret = mint(PERMIT, CLIENT_SECRET, secrets.token_bytes).reveal()
        counts = []
        until_prices_are_published(api)
        for guessed in ("pks_guess", secret):
            before = store_calls(api)
            for _ in range(20):
                assert guess(guessed).status == 429
            counts.append(store_calls(api) - before)
        without, reading = counts  # and what the service does beside them
        assert without <= 2
        assert 20 <= reading <= 22
        denied = 'pricekeeper_api_limit_decisions_total{limit="failures",outcome="denied"}'
        assert scrape(api)[denied] >= 40


def test_a_made_up_token_counts_as_a_guess_at_a_secret_does(tmp_path: Path) -> None:
    """It is answered in the same way, however often; then its address can't guess secrets."""
    with served(tmp_path, {SETTING: "failures=3"}) as api:
        path = f"/api/v1/orgs/{uuid.uuid4()}/apps/web/limits"
        assert {api.call("GET", path, token="made-up").status for _ in range(4)} == {401}
        form = {"grant_type": "client_credentials", "client_secret": "pks_guess"}
        check_refusal(api.call("POST", "/auth/token", {**form, "client_id": f"org-{uuid.uuid4()}"}))


def store_calls(api: Api) -> float:
    """But for queries: a request makes none here, and the metrics make some once a minute."""
    start, query = "pricekeeper_store_calls_total", 'pricekeeper_store_calls_total{call="query"}'
    found = scrape(api).items()
    return sum(value for name, value in found if name.startswith(start) and name != query)


def test_wrong_credentials_are_limited_by_address(narrow: Tenant) -> None:
    """Wrong secrets, refresh and retrieval tokens from one address count together."""
    api, guess = narrow.api, {"token": "pkr_guess"}
    first = {api.refresh("pkrt_guess").status, api.call("POST", CLAIM, guess).status}
    assert first <= {400, 404, 429}  # other tests fail here, too
    statuses, refused = until_refused("failures", lambda: narrow.try_login("wrong"))
    assert set(statuses) <= {401}
    assert len(statuses) <= NARROW["failures"] - 2
    check_refusal(refused)
    assert api.refresh("pkrt_guess").status == 429
    assert api.call("POST", CLAIM, guess).status == 429
    assert narrow.ask("GET", "limits").status == 200


def test_too_many_wrong_secrets_are_told_in_oauths_words(tmp_path: Path) -> None:
    """A token endpoint has one shape of error, also for who has failed too often."""
    with served(tmp_path, {SETTING: "failures=2"}) as api:
        tenant = Tenant(api).register()
        first = tenant.try_login("wrong")
        assert (first.status, first.json["error"]) == (401, "invalid_client")
        _, refused = until_refused("failures", lambda: tenant.try_login("wrong"))
        check_refusal(refused)
        assert refused.json["error"] == "temporarily_unavailable"
        assert refused.headers["content-type"] == first.headers["content-type"]


def test_off_is_off(tmp_path: Path) -> None:
    """One setting, and no request is counted or refused, be it ever so wrong."""
    beyond = API_LIMITS_PER_MINUTE["claim"] + 5
    with served(tmp_path, {SETTING: "off"}) as api:
        replies = [api.call("POST", CLAIM, {"token": "pkr_guess"}) for _ in range(beyond)]
        replies += [api.call("GET", "/api/v1/orgs", key="wrong") for _ in range(beyond)]
        assert {reply.status for reply in replies} == {404, 401}
        assert not any(name in reply.headers for reply in replies for name in TOLD)
        assert not [name for name in scrape(api) if name.startswith("pricekeeper_api_limit")]


def test_a_warm_selection_does_not_ask_the_store(default: Tenant) -> None:
    """Tokens are fetched ahead in blocks: of 200 requests, a few write, and none has to read."""
    requests = 200
    assert default.select().status == 200
    before = scrape(default.api)
    for _ in range(requests):
        assert default.select().status == 200
    after = scrape(default.api)

    def moved(start: str) -> float:
        return sum(
            value - before.get(name, 0) for name, value in after.items() if name.startswith(start)
        )

    decisions = 'pricekeeper_api_limit_decisions_total{limit="selection",outcome='
    assert (moved(f'{decisions}"granted"'), moved(f'{decisions}"denied"')) == (requests, 0)
    prefetched = 'pricekeeper_limiter_work_total{kind="prefetched",limiter="api"}'
    assert moved(prefetched) >= requests * 0.9
    assert moved("pricekeeper_store_calls_total") <= requests * 0.1


@pytest.fixture
async def limits(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[ApiLimits, ManualClock]]:
    """The limits of an instance that remembers three callers, on a clock that the test moves."""
    monkeypatch.setattr("pricekeeper.http.limits.CALLERS_MAX", 3)
    clock = ManualClock()
    store = await open_store(SqliteLocation(MEMORY), clock=clock, meter=StoreMeter())
    await store.create_tables()
    async with Limiter(store, clock=clock, hold_ms=HOLD_MS) as limiter:
        yield ApiLimits(limiter, {"selection": 6_000, "failures": 2}), clock
    await store.close()


async def admitted(limits: ApiLimits, clock: ManualClock) -> tuple[int, int]:
    """The answer to one more request: how many are left, and when all are available again."""
    now_ms = clock.now_ms()
    headers = limits.admit_at_once("selection", "client/x", now_ms)
    if headers is None:
        headers = await limits.admit("selection", "client/x", now_ms)
    told = dict(headers)
    return int(told[b"ratelimit-remaining"]), int(told[b"ratelimit-reset"])


async def test_what_is_left_is_told_anew_every_second(
    limits: tuple[ApiLimits, ManualClock],
) -> None:
    """From memory as well: it has refilled meanwhile, or others have taken."""
    api, clock = limits
    clock.advance_ms(400)
    taken = [await admitted(api, clock) for _ in range(3)]
    clock.advance_ms(500)
    assert await admitted(api, clock) == taken[-1]  # in the same second
    clock.advance_ms(499)
    more = await admitted(api, clock)
    assert (await admitted(api, clock), api.decisions["selection", "granted"]) == (more, 6)
    assert taken[-1] == (6_000 - 101, 2)
    assert more == (6_000 - 101 + 99, 1)


async def test_a_barred_address_recovers_and_is_not_remembered_for_ever(
    limits: tuple[ApiLimits, ManualClock],
) -> None:
    """As soon as one more failure would be let pass; and of many addresses a bounded number."""
    api, clock = limits

    def barred(address: str) -> bool:
        return api.bar_of(address, clock.now_ms()) is not None

    for address in ("a", "b", "c", "d"):
        for _ in range(2):
            await api.note_failure(address, clock.now_ms())
        with pytest.raises(RateLimitExceededError) as refused:
            await api.note_failure(address, clock.now_ms())
    assert [barred(name) for name in "abcd"] == [False, True, True, True]
    wait_ms = refused.value.retry_after_ms or 0
    clock.advance_ms(wait_ms - 1)
    told = api.bar_of("d", clock.now_ms())
    assert told is not None
    assert told.retry_after_ms == 1
    clock.advance_ms(1)
    assert not barred("d")


async def test_a_bar_does_not_outlast_a_clock_that_is_set_back(
    limits: tuple[ApiLimits, ManualClock],
) -> None:
    """The bucket heals, too: after a wait that is no longer than any other, a failure passes."""
    api, clock = limits
    for _ in range(2):
        await api.note_failure("a", clock.now_ms(), of_keys=True)
    with pytest.raises(RateLimitExceededError):
        await api.note_failure("a", clock.now_ms(), of_keys=True)
    assert api.bar_of("a", clock.now_ms(), of_keys=True) is not None
    assert api.bar_of("a", clock.now_ms()) is None  # secrets are counted by themselves
    clock.jump_ms(-3_600_000)
    assert api.bar_of("a", clock.now_ms(), of_keys=True) is None
    with pytest.raises(RateLimitExceededError) as refused:
        await api.note_failure("a", clock.now_ms(), of_keys=True)
    assert refused.value.retry_after_ms == 30_000
    clock.advance_ms(30_000)
    assert api.bar_of("a", clock.now_ms(), of_keys=True) is None
    await api.note_failure("a", clock.now_ms(), of_keys=True)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::_64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::_64"),
        ("fe80::1%eth0", "fe80::_64"),
        ("::1", "::_64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("64:ff9b::cb00:7107", "203.0.113.7"),
        ("not an address", "not_an_address"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_an_address_is_counted_by_its_network(address: str | None, network: str) -> None:
    """Of IPv6 by the /64 that one subscriber has; an IPv4 address is itself, however spelt."""
    assert network_of(address) == network


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server behind a proxy, where an address may fail twice."""
    environment = {
        **ENVIRONMENT,
        SETTING: "failures=2",
        "PRICEKEEPER_TRUSTED_PROXIES": "127.0.0.1",
        "PRICEKEEPER_BEDROCK_UPSTREAM": "http://127.0.0.1:9",
    }
    with running_server(tmp_path_factory.mktemp("proxied"), environment=environment) as server:
        yield Api(server.url)


def test_guesses_from_one_network_count_together(proxied: Api) -> None:
    """Another address of the same /64 gains nothing; the network next to it is another one."""

    def guess(address: str) -> int:
        body = {"grant_type": "refresh_token", "refresh_token": "pkrt_guess"}
        headers = {"x-forwarded-for": address}
        return proxied.call("POST", "/auth/refresh", body, headers=headers).status

    near = [guess(f"2001:db8:0:1:{n:x}::{n:x}") for n in range(1, 5)]
    assert near == [400, 400, 429, 429]
    assert guess("2001:db8:0:2::1") == 400
    for network in ("192.0.2", "::ffff:198.51.100"):
        assert [guess(f"{network}.{n}") for n in range(1, 5)] == [400] * 4


def test_guesses_at_the_gateway_count_for_the_forwarded_address(proxied: Api) -> None:
    """Not for the proxy's, which all callers share; also when only the address differs."""
    guess = {"authorization": f"Bearer {uuid.uuid4()}:pks_guess", "content-length": "2"}
    with closing(HTTPConnection(proxied.url.removeprefix("http://"))) as proxy:

        def ask(path: str, address: str, headers: dict[str, str], body: str) -> int:
            proxy.request("POST", path, body, {**headers, "x-forwarded-for": address})
            reply = proxy.getresponse()
            reply.read()
            return reply.status

        for address in ["203.0.113.1", "203.0.113.2"] * 2 + ["203.0.113.1"]:
            assert ask("/bedrock/model/x/converse", address, guess, "{}") == 403
        login = "grant_type=refresh_token&refresh_token=pkrt_guess"
        form = {"content-type": "application/x-www-form-urlencoded"}
        near = [ask("/auth/refresh", f"203.0.113.{n}", form, login) for n in (1, 2, 3)]
        assert near == [429, 429, 400]


def test_whatever_a_proxy_forwards_can_be_counted(proxied: Api) -> None:
    """An address is text from outside; the caller's mistake is another one."""
    for address in ("a#b", "[::1", ";", "\xe9", "x" * 300, "::1%eth0"):
        headers = {"x-forwarded-for": address}
        assert proxied.call("POST", CLAIM, {"token": "pkr_x"}, headers=headers).status == 404
        assert proxied.call("GET", "/api/v1/orgs", headers=headers).status == 401
