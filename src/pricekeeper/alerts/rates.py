"""How much of something went wrong lately, as one process sees it. No I/O, no clock.

Each process counts what it has answered itself, in stretches of the clock, and judges by that:
with a load balancer in between, each sees its share. It is statistics and not accounting; a process
that dies forgets its stretch, and the next one counts anew.

- **Denials**: of at least `ASKED_MIN` calls that an app has asked for in ten minutes, at least
  ``denied_pct`` were denied, for money or for speed. Told once an hour for each app.
- **Unsettled**: of what calls of an organisation were charged in an hour, at least
  ``unsettled_pct`` is for calls that nobody has settled, and these are `UNSETTLED_MIN` at least.
  Told once a day for each organisation.

Bound: the first `KEYS_MAX` clients of a stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from pricekeeper import showing
from pricekeeper.alerts.alert import AlertKind, Finding, Owner
from pricekeeper.alerts.wording import client_words, command, rfc3339
from pricekeeper.days import next_midnight_ms, org_day
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Policy

DENIED_MS: Final = 600_000
UNSETTLED_MS: Final = 3_600_000
HOUR_MS: Final = 3_600_000
ASKED_MIN: Final = 20
UNSETTLED_MIN: Final = 5
KEYS_MAX: Final = 10_000

K = TypeVar("K")


class Share(NamedTuple):
    """What went wrong, how often, and what there was in all."""

    part: int
    times: int
    whole: int

    def reaches(self, pct: int, times_min: int, whole_min: int) -> bool:
        """Whether that is so much of enough; a percentage of 0 is never reached."""
        is_enough = self.times >= times_min and self.whole >= max(1, whole_min)
        return pct > 0 and is_enough and self.part * 100 >= pct * self.whole


class _Tally:
    """A share that is being counted."""

    __slots__ = ("part", "times", "whole")

    def __init__(self) -> None:
        self.part = self.times = self.whole = 0


class DeniedShares(Generic[K]):
    """The shares of many in the present stretch of the clock."""

    def __init__(self, stretch_ms: int) -> None:
        self._stretch_ms = stretch_ms
        self._number = -1
        self._tallies: dict[K, _Tally] = {}

    def note(self, key: K, part: int, whole: int, now_ms: int) -> None:
        """Note one more: what it is in all, and what of that went wrong."""
        self._turn(now_ms)
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= KEYS_MAX:
                return
            tally = self._tallies[key] = _Tally()
        tally.whole += whole
        if part > 0:
            tally.part += part
            tally.times += 1

    def bad(self, now_ms: int) -> Iterator[tuple[K, Share]]:
        """Those of whom anything went wrong in the present stretch."""
        self._turn(now_ms)
        for key, one in list(self._tallies.items()):
            if one.times:
                yield key, Share(one.part, one.times, one.whole)

    def began_at_ms(self, now_ms: int) -> int:
        """When the present stretch began."""
        return now_ms // self._stretch_ms * self._stretch_ms

    def _turn(self, now_ms: int) -> None:
        if now_ms // self._stretch_ms != self._number:
            self._number = now_ms // self._stretch_ms
            self._tallies = {}


def denial_findings(policy: Policy, share: Share, now_ms: int) -> Iterator[Finding]:
    """That much of what an app asks for is denied."""
    if not share.reaches(policy.alerts.denied_pct, 1, ASKED_MIN):
        return
    whose = client_words(policy, is_app=True)
    pct = share.part * 100 // share.whole
    hour_ms = now_ms // HOUR_MS * HOUR_MS
    yield Finding(
        kind=AlertKind.DENIALS,
        owner=Owner(policy.org_id, policy.org_incarnation),
        identity=(policy.client_id, policy.incarnation, hour_ms),
        title=f"{whose}: {pct} % of its calls are denied",
        text=f"Of {share.whole} calls that {whose} asked one instance for in the last ten minutes, "
        f"{share.part} were denied.",
        next_step=f"See what is left: {command('budgets', policy, policy.app_id is not None)}, and "
        f"{command('limits show', policy, policy.app_id is not None)}",
        about={
            "denied": share.part,
            "asked": share.whole,
            "denied_pct": pct,
            "threshold_pct": policy.alerts.denied_pct,
            "since": rfc3339(now_ms // DENIED_MS * DENIED_MS),
        },
        lasts_until_ms=hour_ms + HOUR_MS,
        org_name=policy.org_name,
        app_id=policy.app_id,
        app_name=policy.app_name,
    )


def unsettled_findings(policy: Policy, share: Share, now_ms: int) -> Iterator[Finding]:
    """That much of what an organisation is charged for was never settled."""
    if not share.reaches(policy.alerts.unsettled_pct, UNSETTLED_MIN, 1):
        return
    part, whole = (-(-picos // PICOS_PER_MICRO) for picos in (share.part, share.whole))
    pct = share.part * 100 // share.whole
    whose = client_words(policy, is_app=False)
    yield Finding(
        kind=AlertKind.UNSETTLED,
        owner=Owner(policy.org_id, policy.org_incarnation),
        identity=(org_day(policy.timezone, now_ms),),
        title=f"{whose}: {pct} % of what is charged was never settled",
        text=f"{showing.usd(part)} of {showing.usd(whole)} that one instance has charged to "
        f"{whose} in the last hour is for {share.times} calls that nobody has settled: "
        "each is charged at the most that it can have cost, until somebody captures or voids it.",
        next_step="Find out which app does not capture its calls: "
        f"pricekeeper authorizations list {policy.org_id} APP --status unsettled",
        about={
            "unsettled_calls": share.times,
            "unsettled_usd_micros": part,
            "charged_usd_micros": whole,
            "unsettled_pct": pct,
            "threshold_pct": policy.alerts.unsettled_pct,
            "since": rfc3339(now_ms // UNSETTLED_MS * UNSETTLED_MS),
        },
        lasts_until_ms=next_midnight_ms(policy.timezone, now_ms),
        org_name=policy.org_name,
    )
