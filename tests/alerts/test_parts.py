"""Texts of alerts mark all parts that others wrote."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.conftest import APP, COST_USD_MICROS, Instance, Org, budget
from alerts.endpoint import Endpoint
from attribution import BY
from pricekeeper.alerts.alert import AlertKind, Finding, foreign, split, unlinked
from pricekeeper.alerts.anomaly import PastDay, anomaly_findings
from pricekeeper.alerts.channel import ChannelKind, ChannelRequest
from pricekeeper.alerts.findings import Share, denial_findings, secret_findings, unsettled_findings
from pricekeeper.alerts.spend import exhausted_findings, fallback_findings, quota_findings
from pricekeeper.selection.fallback import StickyState
from pricekeeper.tenants import Policy
from pricekeeper.values import AppId, ModelLabel
from selection.conftest import SettableClock

HOSTILE = "@all [Renew](https://evil.example)"
DAY = "20300115"


def every_finding(policy: Policy, now_ms: int) -> Iterator[Finding]:
    """One of each kind that is about an organisation or an app."""
    premium, standard = ModelLabel("premium"), ModelLabel("standard")
    spent: dict[str, int] = dict.fromkeys(map(str, policy.model_ordering), 10**30)
    sticky = StickyState(standard, 1, premium, 1, frozenset({premium}))
    past = [PastDay(1, 1)] * 4
    yield from denial_findings(policy, Share(1_000, 1_000, 1_000), now_ms)
    yield from unsettled_findings(policy, Share(10**12, 1_000, 10**12), now_ms)
    yield from anomaly_findings(policy, DAY, 10**15, past, now_ms)
    yield from quota_findings(policy, premium, DAY, 10**30)
    yield from fallback_findings(policy, DAY, sticky)
    yield from exhausted_findings(policy, DAY, spent)
    created = msgspec.structs.replace(policy.alerts, secret_days=1)
    old = replace(policy, alerts=created, client_secret_created_at_epoch=1)
    yield from secret_findings(old, now_ms)


def without_foreign(marked: str) -> str:
    text, ours, at = split(marked), "", 0
    for start, end in text.foreign:
        ours, at = ours + text.plain[at:start], end
    return ours + text.plain[at:]


async def test_names_are_foreign_in_every_kind_of_alert(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """Of the organisation and of the app, in title, text and next step."""
    alerts = {"quota_at_pct": [100], "denied_pct": 1, "unsettled_pct": 1, "anomaly_pct": 200}
    await org.configure({"app_name": f"app {HOSTILE}"}, org_name=f"org {HOSTILE}", alerts=alerts)
    found = [
        one
        for app_id in (APP, None)
        for one in every_finding(await instance.tenants.find_policy(org.id, app_id), clock.now_ms())
    ]

    told = set(AlertKind) - {AlertKind.BUDGET, AlertKind.PRICE, AlertKind.AGGREGATOR_LAG}
    assert {one.kind for one in found} == told
    for one in found:
        assert HOSTILE in split(one.title).plain
        for text in (one.title, one.text, one.next_step):
            assert "evil" not in without_foreign(text)
            assert "\x02" not in split(text).plain


async def test_an_apps_id_is_no_link_in_a_command_and_can_be_pasted(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    """It may look like a host. A break in it would be pasted, too, so quotes part it."""
    host = AppId("www.evil.example")
    await instance.tenants.put_app(org.id, host, {"app_name": "Chat"}, BY)
    alerts = {"quota_at_pct": [100], "denied_pct": 1, "unsettled_pct": 1, "anomaly_pct": 200}
    await org.configure(org_name="Acme", alerts=alerts)
    policy = await instance.tenants.find_policy(org.id, host)
    found = list(every_finding(policy, clock.now_ms()))
    named = [one for one in found if any("evil" in word for word in shell_words(one.next_step))]
    assert {AlertKind.DENIALS, AlertKind.FALLBACK, AlertKind.QUOTA} <= {one.kind for one in named}
    for one in found:
        for text in (one.title, one.text, one.next_step):
            assert not re.search(r"www\.|\.example", without_foreign(text))
        pasted = [word for word in shell_words(one.next_step) if "evil" in word]
        assert set(pasted) <= {host}


def shell_words(text: str) -> list[str]:
    """The words of a sentence with commands in it, as a shell reads them."""
    return [word.rstrip(".,;") for word in shlex.split(text)]


@pytest.mark.parametrize("dot", [".", "\u3002", "\uff0e", "\uff61"])
def test_a_link_is_broken_whatever_dot_is_in_it(dot: str) -> None:
    """Programs take each of these for a dot of a host (UTS 46)."""
    assert unlinked(f"evil{dot}example") == f"evil{dot}\u200bexample"


async def test_a_tag_is_text_in_the_operators_chat(
    org: Org, instance: Instance, endpoint: Endpoint
) -> None:
    """An app chooses it; it can't mention or link."""
    await org.configure(
        tag_keys=["team"],
        budgets=[budget(COST_USD_MICROS, 100, per_tag="team")],
    )
    to = ChannelRequest(ChannelKind.SLACK, endpoint.url)
    await instance.alerts.channels.put(await org.owner(), "chat", to, BY)
    await org.spend(tags={"team": f"{HOSTILE}\n# `*\u202e"})
    await instance.aggregate()
    await instance.deliver()

    (taken,) = endpoint.requests
    text = taken.json["text"]
    assert "`@\u200ball [Renew](https:\u200b/\u200b/\u200bevil.\u200bexample) # \u02cb*`" in text
    assert "@all" not in text
    assert "://" not in text
    (told,) = await org.history(kind=AlertKind.BUDGET)
    body = msgspec.json.decode(told.body)
    (start, end) = body["foreign"]["title"][-1]
    assert body["title"][start:end] == f"{HOSTILE} # `*"


@given(st.lists(st.tuples(st.text(st.characters(categories=["L", "P"])), st.text())))
def test_parts_are_found_again(parts: list[tuple[str, str]]) -> None:
    """For any text, marks included: it stays on one line, and nothing of it is hidden."""
    text = split("".join(ours + foreign(theirs) for ours, theirs in parts))

    shown = [text.plain[start:end] for start, end in text.foreign]
    assert len(shown) == len(parts)
    assert all(one.isprintable() for one in shown)
    assert without_foreign("".join(ours + foreign(theirs) for ours, theirs in parts)) == "".join(
        ours for ours, _ in parts
    )
    assert all(unlinked(one).replace("\u200b", "") == one for one in shown)
