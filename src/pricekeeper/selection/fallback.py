"""Decides which label is recommended, and why. No I/O, no clock.

The first label of the order with quota left is chosen. A label found exceeded while the sticky
fallback is on is **given up** until local midnight; only a quota above the one at which it was
given up brings it back. Given-up labels are a set, because orders are edited and differ by app.

EXCEEDED: ``spent >= quota``. TIGHT: ``spent * 100 >= threshold_pct * quota``, in integers. A label
with a quota of zero is skipped but not given up, so a later quota counts at once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from pricekeeper.tenants import Client, Policy
from pricekeeper.values import ModelLabel

_PCT_HUNDREDTHS: Final = 100 * 100
_UNKNOWN_QUOTA: Final = 1 << 62
"""More than any quota: a label given up at an unknown quota stays so."""


class Reason(StrEnum):
    """Why the label is recommended."""

    NORMAL = "NORMAL"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    """One before it was just found exceeded."""
    STICKY_FALLBACK = "STICKY_FALLBACK"
    """One before it was given up earlier today."""
    MANUAL_OVERRIDE = "MANUAL_OVERRIDE"


class QuotaStatus(StrEnum):
    """How much of a quota is spent."""

    NORMAL = "NORMAL"
    TIGHT = "TIGHT"
    EXCEEDED = "EXCEEDED"


class LabelRole(StrEnum):
    """The role of one label of the order in a decision."""

    CHOSEN = "CHOSEN"
    EXCEEDED = "EXCEEDED"
    """Its quota is spent, which was not recorded before."""
    GIVEN_UP = "GIVEN_UP"
    DISABLED = "DISABLED"
    UNDEFINED = "UNDEFINED"
    NO_TEXT = "NO_TEXT"
    """Its model writes no text, but others do."""
    NOT_NEEDED = "NOT_NEEDED"
    """It comes after the chosen one, or an override decided."""


@dataclass(frozen=True, slots=True)
class LabelQuota:
    """One label's quota and spend at the time of a decision."""

    label: ModelLabel
    spend_usd_micros: int
    quota_usd_micros: int
    status: QuotaStatus
    role: LabelRole
    given_up_at_usd_micros: int = 0
    """The quota spent when it was given up, if known. A later void may make its spend less than
    that."""

    @property
    def quota_pct_hundredths(self) -> int:
        return quota_pct_hundredths(self.spend_usd_micros, self.quota_usd_micros)


@dataclass(frozen=True, slots=True)
class Comeback:
    """A given-up label is used again, or no longer, since its quota was changed."""

    label: ModelLabel
    quota_usd_micros: int
    is_back: bool
    """False if its quota was lowered again."""
    policy_epoch: int
    """When these settings were changed. An instance with older settings records nothing, so two
    never contradict each other."""
    other_label: ModelLabel | None = None


@dataclass(frozen=True, slots=True)
class StickyState:
    """The fallback that is recorded for a scope today."""

    active_label: ModelLabel
    active_index: int
    previous_label: ModelLabel
    activated_at_epoch: int
    given_up: frozenset[ModelLabel]
    """Also those not in the order."""
    given_up_at_usd_micros: Mapping[ModelLabel, int] = field(default_factory=dict)
    """The quota that each had spent; unknown for those that `pricekeeper adopt` copied."""
    comebacks: Mapping[ModelLabel, Comeback] = field(default_factory=dict)
    comeback_version: int = 0

    def barred(self, policy: Policy) -> frozenset[ModelLabel]:
        return frozenset(
            label
            for label in self.given_up
            if policy.quotas.get(label, 0) <= self.given_up_at_usd_micros.get(label, _UNKNOWN_QUOTA)
        )


@dataclass(frozen=True, slots=True)
class Override:
    """The label that an operator has set for an app or an organisation today."""

    client: Client
    label: ModelLabel
    activated_at_epoch: int


@dataclass(frozen=True, slots=True)
class StickyFlip:
    """The change of the sticky state that makes a decision hold until midnight."""

    label: ModelLabel
    index: int
    previous_label: ModelLabel
    given_up: frozenset[ModelLabel]
    quotas_usd_micros: Mapping[ModelLabel, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """A label, or ``None`` if all are exhausted, and its reasons."""

    label: ModelLabel | None
    reason: Reason
    quotas: tuple[LabelQuota, ...]
    sticky_fallback_active: bool
    override: Override | None = None
    flip: StickyFlip | None = None
    comeback: Comeback | None = None

    @property
    def chosen(self) -> LabelQuota | None:
        return next((use for use in self.quotas if use.role is LabelRole.CHOSEN), None)

    @property
    def mode(self) -> QuotaStatus:
        """TIGHT if the chosen label's quota is nearly spent or, under an override, spent."""
        chosen = self.chosen
        calm = chosen is not None and chosen.status is QuotaStatus.NORMAL
        return QuotaStatus.NORMAL if calm else QuotaStatus.TIGHT

    def recorded(self) -> Choice:
        return replace(self, flip=None, sticky_fallback_active=True)


def quota_pct_hundredths(spend_usd_micros: int, quota_usd_micros: int) -> int:
    """Rounded down, so that only a spent quota has 100 %; a quota of zero counts as spent."""
    if quota_usd_micros == 0:
        return _PCT_HUNDREDTHS
    return spend_usd_micros * _PCT_HUNDREDTHS // quota_usd_micros


def quota_status(spend_usd_micros: int, quota_usd_micros: int, tight_pct: int) -> QuotaStatus:
    """The status of a quota with that spend."""
    if spend_usd_micros >= quota_usd_micros:
        return QuotaStatus.EXCEEDED
    if spend_usd_micros * 100 >= tight_pct * quota_usd_micros:
        return QuotaStatus.TIGHT
    return QuotaStatus.NORMAL


def choose(
    policy: Policy,
    defined: Container[str],
    spends_usd_micros: Mapping[ModelLabel, int],
    sticky: StickyState | None = None,
    overrides: Sequence[Override] = (),
    without_text: Container[str] = (),
) -> Choice:
    """Choose a label. The first override that names a usable label of the ordering decides.

    ``defined`` are the labels that the deployment has a model for. Labels ``without_text`` are
    chosen only by an override.
    """
    ordering = policy.model_ordering
    state = sticky if policy.sticky_fallback_enabled else None
    given_up: frozenset[ModelLabel] = state.barred(policy) if state else frozenset()
    obstacles = [
        LabelRole.UNDEFINED
        if label not in defined
        else LabelRole.NO_TEXT
        if label in without_text
        else _obstacle(
            policy.quotas.get(label, 0), spends_usd_micros.get(label, 0), label in given_up
        )
        for label in ordering
    ]
    override = next((o for o in overrides if o.label in ordering and o.label in defined), None)
    if override is None:
        position = obstacles.index(None) if None in obstacles else None
    else:
        position = ordering.index(override.label)
        obstacles = [None] * len(ordering)
    roles = _roles(obstacles, position)
    flip = comeback = None
    if position is not None and policy.sticky_fallback_enabled:
        flip = _new_flip(policy, roles, position, state)
    if position is not None and state is not None and override is None and flip is None:
        comeback = _new_comeback(policy, obstacles, position, state)
    return Choice(
        label=None if position is None else ordering[position],
        reason=Reason.MANUAL_OVERRIDE if override else _reason(roles),
        quotas=tuple(
            _label_quota(policy, label, spends_usd_micros.get(label, 0), role, state)
            for label, role in zip(ordering, roles, strict=True)
        ),
        sticky_fallback_active=not given_up.isdisjoint(ordering),
        override=override,
        flip=flip,
        comeback=comeback,
    )


def _obstacle(quota_usd_micros: int, spend_usd_micros: int, given_up: bool) -> LabelRole | None:  # noqa: FBT001
    if quota_usd_micros == 0:
        return LabelRole.DISABLED
    if given_up:
        return LabelRole.GIVEN_UP
    return LabelRole.EXCEEDED if spend_usd_micros >= quota_usd_micros else None


def _roles(obstacles: Sequence[LabelRole | None], position: int | None) -> list[LabelRole]:
    return [
        LabelRole.CHOSEN
        if at == position
        else LabelRole.NOT_NEEDED
        if obstacle is None or (position is not None and at > position)
        else obstacle
        for at, obstacle in enumerate(obstacles)
    ]


def _reason(roles: Sequence[LabelRole]) -> Reason:
    if LabelRole.EXCEEDED in roles or LabelRole.CHOSEN not in roles:
        return Reason.QUOTA_EXCEEDED
    return Reason.STICKY_FALLBACK if LabelRole.GIVEN_UP in roles else Reason.NORMAL


def _new_flip(
    policy: Policy, roles: Sequence[LabelRole], position: int, state: StickyState | None
) -> StickyFlip | None:
    ordering = policy.model_ordering
    role_of = zip(ordering, roles, strict=True)
    exceeded = [label for label, role in role_of if role is LabelRole.EXCEEDED]
    if not exceeded:
        return None
    # The record's index only ever grows, so no new flip is refused as an old one. With one order it
    # is the position itself. Apps with different orders count on from each other.
    index = position if state is None else max(position, state.active_index + 1)
    previous = exceeded[0] if state is None else _in_force(exceeded, state)
    given_up = frozenset[ModelLabel]() if state is None else state.given_up
    quotas = {label: policy.quotas.get(label, 0) for label in exceeded}
    return StickyFlip(ordering[position], index, previous, given_up.union(exceeded), quotas)


def _in_force(exceeded: Sequence[ModelLabel], state: StickyState) -> ModelLabel:
    return next((label for label in exceeded if _is_back(label, state)), state.active_label)


def _is_back(label: ModelLabel, state: StickyState) -> bool:
    known = state.comebacks.get(label)
    given_up_at = state.given_up_at_usd_micros.get(label)
    return known is not None and known.is_back and known.quota_usd_micros == given_up_at


def _new_comeback(
    policy: Policy, obstacles: Sequence[LabelRole | None], position: int, state: StickyState
) -> Comeback | None:
    ordering, epoch = policy.model_ordering, policy.updated_at_epoch
    chosen = ordering[position]
    for label in ordering[:position]:
        if _is_back(label, state) and state.comebacks[label].policy_epoch < epoch:
            quota_usd_micros = state.given_up_at_usd_micros[label]
            return Comeback(label, quota_usd_micros, False, epoch, chosen)  # noqa: FBT003
    given_up_at = state.given_up_at_usd_micros.get(chosen)
    if given_up_at is None or chosen == state.active_label or _is_back(chosen, state):
        return None
    known = state.comebacks.get(chosen)
    if known is not None and known.quota_usd_micros == given_up_at and known.policy_epoch >= epoch:
        return None
    rest = zip(ordering[position + 1 :], obstacles[position + 1 :], strict=True)
    other = next((label for label, obstacle in rest if obstacle is None), state.active_label)
    return Comeback(chosen, given_up_at, True, epoch, other)  # noqa: FBT003


def _label_quota(
    policy: Policy,
    label: ModelLabel,
    spend_usd_micros: int,
    role: LabelRole,
    state: StickyState | None,
) -> LabelQuota:
    quota_usd_micros = policy.quotas.get(label, 0)
    status = quota_status(spend_usd_micros, quota_usd_micros, policy.tight_mode_threshold_pct)
    given_up_at = 0
    if state is not None and role is LabelRole.GIVEN_UP:
        given_up_at = state.given_up_at_usd_micros.get(label, 0)
    return LabelQuota(label, spend_usd_micros, quota_usd_micros, status, role, given_up_at)
