"""The company's traffic and quotas, made from a seed, and the sums that the service must count.

Quotas follow from the traffic, costs from the deployment file, equal to the micro-dollar.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pricekeeper.pricing import Catalogue, Rates, split_micros

COMPANY: Final = "Larkspur Outfitters"
ZONE: Final = "America/New_York"
LABELS: Final = ("premium", "standard", "economy")

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
AFTER_MIDNIGHT_MS: Final = HOUR_MS // 4
LONG_JOBS: Final = 6
LONG_JOBS_PER_HOUR: Final = 4
LONG_JOBS_AT_MS: Final = 2 * HOUR_MS
REDEPLOYED_AT_MS: Final = 11 * HOUR_MS
SESSION_LIMIT: Final = 2
_RESENT_EVERY: Final = 60


@dataclass(frozen=True, slots=True)
class Persona:
    """An app: its busy hours, token counts, and each quota's hours."""

    app_id: str
    name: str
    share_pct: int
    hours: Mapping[int, int]
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    order: tuple[str, ...]
    lasts_until_hour: tuple[int, ...]
    """When each model's quota runs out, but the last's."""


SUPPORT: Final = Persona(
    "support-chat", "Support chat", 55,
    {7: 2, 8: 5, 9: 9, 10: 10, 11: 9, 12: 7, 13: 9, 14: 10, 15: 10, 16: 9, 17: 7, 18: 5, 19: 4,
     20: 3, 21: 2, 22: 1, 23: 1},
    (600, 4_000), (150, 700), LABELS, (10, 14),
)  # fmt: skip
REVIEW: Final = Persona(
    "code-review", "Code review", 30,
    {8: 2, 9: 6, 10: 9, 11: 8, 12: 4, 13: 8, 14: 10, 15: 9, 16: 8, 17: 5, 18: 2, 21: 1, 22: 2},
    (3_000, 16_000), (200, 1_200), LABELS, (13, 24),
)  # fmt: skip
REPORTS: Final = Persona(
    "night-reports", "Night reports", 15,
    {0: 4, 1: 8, 2: 10, 3: 10, 4: 8, 5: 3, 23: 2},
    (8_000, 40_000), (800, 2_500), LABELS[1:], (3,),
)  # fmt: skip
PERSONAS: Final = (SUPPORT, REVIEW, REPORTS)


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned model call."""

    at_ms: int
    """From midnight."""
    app_id: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    resend: bool = False
    """Its usage reply gets lost, so the app resends."""
    long_job: bool = False


def plan_day(calls: int, seed: int) -> list[Planned]:
    """Plan the day's calls and a few of the next, by time."""
    dice = random.Random(seed)  # noqa: S311  # repeatable
    planned = [
        _call(dice, persona, _moment_ms(dice, persona), resend=number % _RESENT_EVERY == 0)
        for persona in PERSONAS
        for number in range(calls * persona.share_pct // 100)
    ]
    planned += [_call(dice, REPORTS, LONG_JOBS_AT_MS, long_job=True) for _ in range(LONG_JOBS)]
    planned += [
        _call(dice, persona, DAY_MS + AFTER_MIDNIGHT_MS * number // 3)
        for persona in PERSONAS
        for number in (1, 2)
    ]
    return sorted(planned, key=lambda call: call.at_ms)


def cost_usd_picos(call: Planned, rates: Rates) -> int:
    """The cost of a call at these rates."""
    return (
        call.input_tokens * (rates.input or 0)
        + call.output_tokens * (rates.output or 0)
        + call.cache_read_tokens * (rates.cache_read or 0)
    )


def quotas(persona: Persona, planned: Iterable[Planned], catalogue: Catalogue) -> dict[str, int]:
    """Micro-dollars a day by label, so each model runs out at its hour."""
    mine = [call for call in planned if call.app_id == persona.app_id and call.at_ms < DAY_MS]
    made: dict[str, int] = {}
    from_ms = 0
    for label, hour in zip(persona.order, (*persona.lasts_until_hour, None), strict=True):
        until_ms = DAY_MS if hour is None else hour * HOUR_MS
        rates = catalogue.model(label).default_pricing
        cost = sum(cost_usd_picos(call, rates) for call in mine if from_ms <= call.at_ms < until_ms)
        # The last model never runs out in the demo.
        ample = hour is None or until_ms >= DAY_MS
        made[label] = max(100_000, cost * (3 if ample else 1) // 1_000_000)
        from_ms = until_ms
    return made


def org_settings() -> dict[str, Any]:
    """The organisation's settings; apps have quotas of their own."""
    return {
        "org_name": COMPANY,
        "timezone": ZONE,
        "quota_scope": "APP",
        "model_ordering": list(LABELS),
        "quotas": dict.fromkeys(LABELS, 0),
    }


def app_settings(
    persona: Persona, planned: Sequence[Planned], catalogue: Catalogue
) -> dict[str, Any]:
    """An app's settings, with limits that only its long jobs reach."""
    return {
        "app_name": persona.name,
        "model_ordering": list(persona.order),
        "quotas": quotas(persona, planned, catalogue),
        "session_limit": SESSION_LIMIT,
        "rate_limits": {
            "*": {"tpm": _per(10_000_000, 60_000), "long_jobs": _per(LONG_JOBS_PER_HOUR, HOUR_MS)}
        },
    }


def _per(amount: int, period_ms: int) -> dict[str, int]:
    return {"capacity": amount, "refill_amount": amount, "refill_period_ms": period_ms}


def _moment_ms(dice: random.Random, persona: Persona) -> int:
    (hour,) = dice.choices(list(persona.hours), list(persona.hours.values()))
    return hour * HOUR_MS + dice.randrange(HOUR_MS)


def _call(
    dice: random.Random,
    persona: Persona,
    at_ms: int,
    *,
    resend: bool = False,
    long_job: bool = False,
) -> Planned:
    input_tokens = dice.randint(*persona.input_tokens)
    return Planned(
        at_ms=at_ms,
        app_id=persona.app_id,
        input_tokens=input_tokens,
        output_tokens=dice.randint(*persona.output_tokens),
        cache_read_tokens=dice.choice((0, 0, input_tokens // 2)),
        resend=resend,
        long_job=long_job,
    )


NUMBERS = ("requests", "input_tokens", "output_tokens", "cache_read_tokens")


class Sums(Counter[str]):
    """Summed `NUMBERS`, and the exact cost."""

    @property
    def cost_usd_micros(self) -> int:
        return split_micros(self["cost_usd_picos"])[0]

    def answer(self) -> dict[str, int]:
        return {**{name: self[name] for name in NUMBERS}, "cost_usd_micros": self.cost_usd_micros}


class Mismatch(NamedTuple):
    """A sent and a counted number that differ."""

    app_id: str
    day: str
    label: str
    number: str
    sent: int
    counted: int


class DemoLedger:
    """Sums by app, day (yyyy-mm-dd) and label."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.sums: defaultdict[tuple[str, str, str], Sums] = defaultdict(Sums)

    def add(self, call: Planned, day: str, label: str) -> Sums:
        sums = self.sums[call.app_id, day, label]
        cost = cost_usd_picos(call, self.catalogue.model(label).default_pricing)
        sums["requests"] += 1
        sums["cost_usd_picos"] += cost
        for name in NUMBERS[1:]:
            sums[name] += getattr(call, name)
        return sums

    def whole(self) -> Sums:
        whole = Sums()
        for sums in self.sums.values():
            whole.update(sums)
        return whole

    def differences(
        self, app_id: str, day: str, models: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[Mismatch]:
        """Compare with an app's day from ``GET /aggregates``."""
        sent_labels = {label for app, on, label in self.sums if (app, on) == (app_id, day)}
        for label in sorted(sent_labels | models.keys()):
            sent, counted = self.sums.get((app_id, day, label), Sums()), models.get(label, {})
            for number, count in sent.answer().items():
                if counted.get(number, 0) != count:
                    yield Mismatch(app_id, day, label, number, count, counted.get(number, 0))
