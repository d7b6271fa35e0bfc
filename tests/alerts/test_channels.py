"""Channels: sealed where they rest, bounded, of one life of their organisation."""

import asyncio
from typing import Any

import msgspec
import pytest

from alerts.conftest import PEPPERS, Instance, Org
from alerts.endpoint import SECRET, Endpoint
from attribution import BY
from pricekeeper.alerts import AlertKind, ChannelKind, ChannelRequest, Guard, Owner
from pricekeeper.alerts.alert import DEPLOYMENT
from pricekeeper.alerts.channel import CHANNELS_MAX, ChannelAddress, address_of
from pricekeeper.alerts.channels import Channels
from pricekeeper.alerts.items import Receiver
from pricekeeper.credentials import Pepper, Peppers, Sealer
from pricekeeper.errors import (
    ConflictError,
    ContendedError,
    DeliveryError,
    NotFoundError,
    RequestRefusedError,
    UnreadableItemError,
)
from pricekeeper.storage import Item, Key, Set, Store, Update
from pricekeeper.storage.tables import CONFIG
from selection.conftest import SettableClock
from stores import stored

URL = "https://hooks.example.com/a-secret-path"


def request(**changes: Any) -> ChannelRequest:
    return ChannelRequest(ChannelKind.WEBHOOK, **{"url": URL, "secret": SECRET, **changes})


async def sealed_item(store: Store, owner: Owner) -> Item:
    key = Key("ALERTS", "ALERTS") if owner == DEPLOYMENT else Key(f"ORG#{owner.org_id}", "ALERTS")
    return await stored(store, CONFIG, key)


async def test_what_is_secret_is_sealed_where_it_rests(org: Org, instance: Instance) -> None:
    """The item shows the host, and nothing that opens anything."""
    channels, owner = instance.alerts.channels, await org.owner()
    for of in (owner, DEPLOYMENT):
        await channels.put(of, "ops", request(), BY)
        text = str(await sealed_item(instance.store, of))
        assert "hooks.example.com" in text
        assert "secret-path" not in text
        assert SECRET not in text
        opened = await channels.open(Receiver(of, "ops"))
        assert opened is not None
        assert (opened.address.url, opened.address.secret) == (URL, SECRET)
        assert "secret" not in repr(opened)


async def test_what_is_copied_to_another_owner_opens_nothing(org: Org, instance: Instance) -> None:
    """An attacker who can write to the store can't redirect our calls."""
    channels, owner = instance.alerts.channels, await org.owner()
    await channels.put(owner, "ops", request(), BY)
    mine = await sealed_item(instance.store, owner)
    await channels.put(DEPLOYMENT, "ops", request(url="https://other.example.com/"), BY)
    copied = (Set("channels", mine["channels"]),)
    await instance.store.update(Update(CONFIG, Key("ALERTS", "ALERTS"), copied))

    with pytest.raises(DeliveryError, match="set the channel again"):
        await channels.open(Receiver(DEPLOYMENT, "ops"))


async def test_another_pepper_opens_nothing_and_no_pepper_finds_them(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    owner = await org.owner()
    await instance.alerts.channels.put(owner, "ops", request(), BY)
    other = Peppers(Pepper("v1", b"x" * 32))
    wrong = Channels(instance.store, clock, instance.tenants, sealer=Sealer(other))
    none = Channels(instance.store, clock, instance.tenants)

    for channels in (wrong, none):
        assert [one.name for one in await channels.read_all(owner)] == ["ops"]
        with pytest.raises(DeliveryError):
            await channels.open(Receiver(owner, "ops"))
    assert PEPPERS.current.version == "v1"


async def test_a_channel_keeps_what_a_change_does_not_say(org: Org, instance: Instance) -> None:
    """Its address or its secret alone may change."""
    channels, owner = instance.alerts.channels, await org.owner()
    await channels.put(owner, "ops", request(), BY)
    await channels.put(owner, "ops", request(url=None, secret="another-secret-of-it"), BY)
    opened = await channels.open(Receiver(owner, "ops"))

    assert opened is not None
    assert (opened.address.url, opened.address.secret) == (URL, "another-secret-of-it")


async def test_changes_at_one_moment_all_hold(org: Org, instance: Instance) -> None:
    """Each replaces the item that it has read; who comes second reads again."""
    channels, owner = instance.alerts.channels, await org.owner()
    names = [f"ops-{number}" for number in range(4)]
    await asyncio.gather(*(channels.put(owner, name, request(), BY) for name in names))

    assert [one.name for one in await channels.read_all(owner)] == names


async def test_their_number_is_bounded_by_construction(org: Org, instance: Instance) -> None:
    channels, owner = instance.alerts.channels, await org.owner()
    for number in range(CHANNELS_MAX - 1):
        await channels.put(owner, f"ops-{number}", request(), BY)
    asked = (channels.put(owner, f"more-{number}", request(), BY) for number in range(4))
    done = await asyncio.gather(*asked, return_exceptions=True)

    assert len(await channels.read_all(owner)) == CHANNELS_MAX
    refused = [one for one in done if isinstance(one, BaseException)]
    assert len(refused) == 3
    assert all(isinstance(one, ConflictError | ContendedError) for one in refused)


async def test_channels_belong_to_one_life(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """A recreated organisation has none, and the old life can't set any."""
    channels, owner = instance.alerts.channels, await org.owner()
    await channels.put(owner, "ops", request(), BY)
    await instance.tenants.delete_org(org.id, BY)
    assert await instance.store.get(CONFIG, Key(f"ORG#{org.id}", "ALERTS")) is None
    with pytest.raises(NotFoundError):
        await channels.put(owner, "ops", request(), BY)
    await org.configure()

    assert await channels.read_all(await org.owner()) == []
    with pytest.raises(NotFoundError):
        await channels.put(owner, "ops", request(), BY)
    await channels.put(await org.owner(), "ops", request(), BY)


async def test_an_item_that_makes_no_sense_is_reported(org: Org, instance: Instance) -> None:
    """It is its owner's matter, and never an empty list."""
    owner = await org.owner()
    await instance.alerts.channels.put(owner, "ops", request(), BY)
    damage = (Set("channels", {"ops": {"kind": "PIGEON"}}),)
    await instance.store.update(Update(CONFIG, Key(f"ORG#{org.id}", "ALERTS"), damage))

    with pytest.raises(UnreadableItemError, match="the channel ops"):
        await instance.alerts.channels.read_all(owner)


TOPIC = "arn:aws:sns:eu-central-1:123456789012:alerts"
MAIL: dict[str, Any] = {
    "url": "smtps://smtp.example.com",
    "user": "someone",
    "secret": "a-password",
    "sender": "alerts@example.com",
    "recipients": ("ops@example.com",),
}


@pytest.mark.parametrize(
    ("kind", "fields", "shown"),
    [
        (ChannelKind.SLACK, {"url": URL}, "https://hooks.example.com"),
        (ChannelKind.SNS, {"url": TOPIC}, TOPIC),
        (ChannelKind.EMAIL, MAIL, "ops@example.com by smtps://smtp.example.com"),
    ],
)
async def test_every_kind_is_sealed(
    org: Org, instance: Instance, kind: ChannelKind, fields: dict[str, Any], shown: str
) -> None:
    """What is shown of it opens nothing; a change of a part keeps the rest."""
    channels, owner = instance.alerts.channels, await org.owner()
    saved = await channels.put(owner, "ops", ChannelRequest(kind, **fields), BY)
    await channels.put(owner, "ops", ChannelRequest(kind, kinds=(AlertKind.BUDGET,)), BY)

    assert saved.channel.shown == shown
    text = str(await sealed_item(instance.store, owner))
    assert not any(word in text for word in ("secret-path", "a-password", "someone"))
    opened = await channels.open(Receiver(owner, "ops"))
    assert opened is not None
    assert {name: getattr(opened.address, name) for name in fields} == fields
    assert "password" not in repr(opened)


ANOTHER_SERVER = [
    (ChannelKind.EMAIL, "smtps://other.example.com"),
    (ChannelKind.EMAIL, "smtps://smtp.example.com:2525"),
    (ChannelKind.EMAIL, "smtp://smtp.example.com"),
    (ChannelKind.EMAIL, "smtp://smtp.example.com:465"),
    (ChannelKind.WEBHOOK, "https://other.example.com/a-secret-path"),
    (ChannelKind.WEBHOOK, "https://hooks.example.com:8443/a-secret-path"),
]
FIRST: dict[ChannelKind, dict[str, Any]] = {
    ChannelKind.EMAIL: MAIL,
    ChannelKind.WEBHOOK: {"url": URL, "secret": SECRET},
}


@pytest.mark.parametrize(("kind", "url"), ANOTHER_SERVER)
async def test_another_server_is_not_given_the_secret_of_the_first(
    org: Org, instance: Instance, kind: ChannelKind, url: str
) -> None:
    """Who may set a channel could otherwise have its password sent to a server of theirs."""
    channels, said = instance.alerts.channels, FIRST[kind]
    names = ["secret", "user"] if kind is ChannelKind.EMAIL else ["secret"]
    for owner in (await org.owner(), DEPLOYMENT):
        await channels.put(owner, "ops", ChannelRequest(kind, **said), BY)
        before = await channels.open(Receiver(owner, "ops"))
        with pytest.raises(RequestRefusedError, match="state it again") as refused:
            await channels.put(owner, "ops", ChannelRequest(kind, url=url), BY)
        assert [one.field for one in refused.value.mistakes] == names
        assert await channels.open(Receiver(owner, "ops")) == before

        again = {name: said[name] for name in names}
        await channels.put(owner, "ops", ChannelRequest(kind, url=url, **again), BY)
        opened = await channels.open(Receiver(owner, "ops"))
        assert opened is not None
        assert (opened.address.url, opened.address.secret) == (url, said["secret"])


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        (ChannelKind.EMAIL, "smtps://SMTP.example.com:465/"),
        (ChannelKind.WEBHOOK, "https://hooks.example.com:443/another-path"),
    ],
)
def test_the_same_server_keeps_them(kind: ChannelKind, url: str) -> None:
    before = ChannelAddress(**FIRST[kind])
    after = address_of(ChannelRequest(kind, url=url), before, Guard())
    assert after == msgspec.structs.replace(before, url=url)


def test_a_login_can_be_dropped_with_the_server() -> None:
    """Who says that there is none has said it; where there was none, nothing is asked for."""
    url, before = "smtps://other.example.com", ChannelAddress(**MAIL)
    none = address_of(
        ChannelRequest(ChannelKind.EMAIL, url=url, user="", secret=""), before, Guard()
    )
    assert (none.url, none.user, none.secret) == (url, "", "")
    back = address_of(ChannelRequest(ChannelKind.EMAIL, url=MAIL["url"]), none, Guard())
    assert (back.url, back.user, back.secret) == (MAIL["url"], "", "")


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        (ChannelKind.SLACK, {"url": URL, "secret": SECRET}, "secret"),
        (ChannelKind.SLACK, {"url": "http://hooks.example.com/"}, "url"),
        (ChannelKind.SLACK, {}, "url"),
        (ChannelKind.SNS, {"url": URL}, "url"),
        (ChannelKind.SNS, {"url": TOPIC.replace("eu-central-1", "evil.example.com/")}, "url"),
        (ChannelKind.SNS, {"url": f"{TOPIC}\n"}, "url"),
        (ChannelKind.EMAIL, {**MAIL, "url": URL}, "url"),
        (ChannelKind.EMAIL, {**MAIL, "url": "smtp://10.0.0.1"}, "url"),
        (ChannelKind.EMAIL, {**MAIL, "url": "smtps://smtp.example.com/path"}, "url"),
        (ChannelKind.EMAIL, {**MAIL, "user": ""}, "user"),
        (ChannelKind.EMAIL, {**MAIL, "secret": "two\r\nlines"}, "secret"),
        (ChannelKind.EMAIL, {**MAIL, "sender": "no-address"}, "sender"),
        (ChannelKind.EMAIL, {**MAIL, "recipients": ()}, "recipients"),
        (ChannelKind.EMAIL, {**MAIL, "recipients": ("a@b.de",) * 11}, "recipients"),
        (ChannelKind.EMAIL, {**MAIL, "recipients": ("a@b.de>\r\nDATA",)}, "recipients[0]"),
        (ChannelKind.EMAIL, {**MAIL, "recipients": ("a@b.de", "a b@c.de")}, "recipients[1]"),
    ],
)
def test_an_address_that_can_not_be_is_refused(
    kind: ChannelKind, changes: dict[str, Any], field: str
) -> None:
    """The field is named, and what may be there."""
    with pytest.raises(RequestRefusedError) as refused:
        address_of(ChannelRequest(kind, **changes), None, Guard(topics=[f"{TOPIC}\n"]))
    assert [one.field for one in refused.value.mistakes] == [field]


@pytest.mark.parametrize("listed", [[], [TOPIC.replace("alerts", "alerts-2")], [TOPIC.upper()]])
def test_a_topic_is_named_only_from_the_deployments_list(listed: list[str]) -> None:
    """The service publishes with its own AWS credentials, so tenants must not choose any topic."""
    request = ChannelRequest(ChannelKind.SNS, url=TOPIC)
    with pytest.raises(RequestRefusedError, match="PRICEKEEPER_ALERT_TOPICS") as refused:
        address_of(request, None, Guard(topics=listed))
    assert [one.field for one in refused.value.mistakes] == ["url"]
    assert address_of(request, None, Guard(topics=[*listed, TOPIC])).url == TOPIC


@pytest.mark.parametrize(
    ("sender", "message"),
    [("", "is required: an address such as"), ("a", "must be an address such as")],
)
def test_a_sender_that_is_no_address_is_not_called_missing(sender: str, message: str) -> None:
    with pytest.raises(RequestRefusedError, match=f"sender: {message}"):
        address_of(ChannelRequest(ChannelKind.EMAIL, **MAIL | {"sender": sender}), None, Guard())
