"""What a caller requests before a call, and the labels that may serve the request. No I/O.

A label can't take a call if its model writes no text and the call needs some, or if its answers are
too short. Quotas are decided later, and a denial names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from pricekeeper.authorizations.authorization import Considered
from pricekeeper.bedrock import AUTO, CacheWrite
from pricekeeper.budgets import Scope
from pricekeeper.days import next_midnight_ms
from pricekeeper.errors import (
    AuthorizationDeniedError,
    DeniedBy,
    InvalidValueError,
    Obstacle,
    PriceKeeperError,
    UnknownModelLabelError,
)
from pricekeeper.metering.usage import fingerprint as fingerprint_of
from pricekeeper.pricing import (
    PICOS_PER_MICRO,
    TOKENS_MAX,
    Catalogue,
    Model,
    answer_tokens,
    too_short,
)
from pricekeeper.selection import Choice, LabelQuota, LabelRole, QuotaStatus, Reason
from pricekeeper.tags import check_tags
from pricekeeper.tenants import Policy, QuotaEnforcement, QuotaScope
from pricekeeper.values import ModelLabel
from pricekeeper.wire.bounds import CONSUME_MAX, HOLD_SECS_DEFAULT, HOLD_SECS_RANGE

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ROLES: Final = {
    LabelRole.EXCEEDED: "its quota for the day is spent",
    LabelRole.GIVEN_UP: "it was given up earlier today, until midnight or a higher quota",
    LabelRole.DISABLED: "its quota is zero",
    LabelRole.UNDEFINED: "the deployment has no such model",
    LabelRole.NOT_NEEDED: "an operator's override names another label",
    LabelRole.NO_TEXT: "it writes no text, and other labels of the ordering do",
}
_BY_QUOTA: Final = (LabelRole.EXCEEDED, LabelRole.GIVEN_UP, LabelRole.DISABLED)
_NOT_AMONG: Final = "the call excludes it"


class AuthorizationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that is about to be made."""

    input_tokens: int
    max_output_tokens: int
    authorization_id: str | None = None
    model: str = AUTO
    fallback: bool | None = None
    among: tuple[str, ...] = ()
    """The labels that `AUTO` may take; all if empty."""
    cache_write: CacheWrite = CacheWrite.NONE
    service_tier: str | None = None
    batch: bool = False
    uses: tuple[str, ...] = ()
    """What Bedrock bills beside tokens; the deployment file must have prices for it."""
    window_tokens: int = 0
    """If it is longer than the model's default."""
    consume: dict[str, int] | None = None
    tags: dict[str, str] = {}
    allow_lower_max_output: bool = False
    min_output_tokens: int = 1
    hold_secs: int = HOLD_SECS_DEFAULT
    dry_run: bool = False
    by_gateway: bool = False

    @property
    def may_fall_back(self) -> bool:
        return self.model == AUTO if self.fallback is None else self.fallback

    def longest_answer(self, cap: int | None) -> int:
        """The longest answer to reserve for, lowered to ``cap`` if the caller allows it.

        Raises `InvalidValueError` if not: the call would get a longer answer than the reserved one.
        """
        asked, least = self.max_output_tokens, self.least_output_tokens
        if cap is None or asked <= cap or self.by_gateway:
            return asked
        if least is None:
            raise InvalidValueError(
                "max_output_tokens",
                f"must be {cap} at most, the app's max_output_tokens_cap; or set allow_lower_max_"
                "output, and call the model with the max_output_tokens of the answer",
            )
        if least > cap:
            raise InvalidValueError(
                "min_output_tokens", f"must be {cap} at most, the app's max_output_tokens_cap"
            )
        return cap

    @property
    def least_output_tokens(self) -> int | None:
        """``None`` if it may not be shortened."""
        if not self.allow_lower_max_output:
            return None
        return min(self.min_output_tokens, self.max_output_tokens)


def checked(request: AuthorizationRequest) -> AuthorizationRequest:
    """The request with its id in canonical form; raises `InvalidValueError` for a bad field."""
    _check_whole("input_tokens", request.input_tokens, 0, TOKENS_MAX)
    _check_whole("max_output_tokens", request.max_output_tokens, 0, TOKENS_MAX)
    _check_whole("min_output_tokens", request.min_output_tokens, 0, TOKENS_MAX)
    check_hold_secs(request.hold_secs)
    if request.consume is not None:
        if len(request.consume) > CONSUME_MAX:
            raise InvalidValueError("consume", f"must have at most {CONSUME_MAX} limits")
        for name, count in request.consume.items():
            _check_whole(f"consume.{name[:64]}", count, 0, TOKENS_MAX)
    if request.tags:
        check_tags(request.tags)
    if request.authorization_id is None:
        return request
    canonical = parse_id(request.authorization_id)
    return msgspec.structs.replace(request, authorization_id=canonical)


def parse_id(text: str, field: str = "authorization_id") -> str:
    """An id in canonical form; raises `InvalidValueError`."""
    if _CANONICAL.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidValueError(
            field, "must be a UUID such as 01928f7c-12ab-7c3d-8e4f-0123456789ab"
        ) from error


def check_hold_secs(hold_secs: int) -> None:
    """Raise `InvalidValueError` for a hold that is too short or too long."""
    _check_whole("hold_secs", hold_secs, *HOLD_SECS_RANGE)


def fingerprint(client_id: str, request: AuthorizationRequest) -> bytes:
    """Equal for equal requests of one client; the id is not part of it."""
    body = request
    if request.authorization_id is not None or request.dry_run:
        body = msgspec.structs.replace(request, authorization_id=None, dry_run=False)
    return fingerprint_of(client_id, body)


def _check_whole(field: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidValueError(field, f"must be a whole number from {least} to {most}")


class Usable(msgspec.Struct, frozen=True):
    """A label that a call may use, or could use if its quota were not spent."""

    label: ModelLabel
    reason: Reason
    barred_by: DeniedBy | None = None


Labels: TypeAlias = Sequence[Usable | Considered]


def named_labels(catalogue: Catalogue, policy: Policy, request: AuthorizationRequest) -> Labels:
    """The label that the call names and, if it may fall back, later ones of its kind."""
    label = find_label(catalogue, policy, request.model)
    first = Usable(label, Reason.NORMAL)
    if not request.may_fall_back:
        return (first,)
    named = catalogue.model(label)
    asked, least = request.max_output_tokens, request.least_output_tokens
    below = policy.model_ordering[policy.model_ordering.index(label) + 1 :]
    others = (catalogue.model(one) for one in below if _may_use(catalogue, policy, one))
    return (
        first,
        *(
            Considered(one.label, why)
            if (why := _why_unfit(one, asked, least))
            else Usable(one.label, Reason.QUOTA_EXCEEDED)
            for one in others
            if one.writes_text == named.writes_text
        ),
    )


def labels_in_force(
    catalogue: Catalogue,
    policy: Policy,
    request: AuthorizationRequest,
    choice: Choice,
    now_ms: int,
) -> Labels:
    """The label in force and, if it may fall back, the later ones.

    Labels that can't take the call are skipped. If only quotas deny the others, these become barred
    candidates, so that the denial names their quotas.
    """
    unfit = _unfit(catalogue, policy, request, choice)
    found: list[Usable | Considered] = []
    barred: dict[str, Usable] = {}
    has_begun = has_usable = False
    for use in choice.quotas:
        has_begun |= use.role is LabelRole.CHOSEN
        role = _role(catalogue, policy, use, choice, has_begun=has_begun)
        why = unfit.get(use.label) or ("" if _is_among(request, use.label) else _NOT_AMONG)
        if not why and role is LabelRole.CHOSEN:
            is_overruled = choice.override is not None and use.label != choice.label
            first = Reason.NORMAL if is_overruled else choice.reason
            found.append(Usable(use.label, Reason.QUOTA_EXCEEDED if has_usable else first))
            has_usable = True
            if not request.may_fall_back:
                break
            continue
        found.append(Considered(use.label, why or _ROLES[role]))
        if not why and role in _BY_QUOTA:
            spent = _spent_quota(policy, use, now_ms)
            barred[use.label] = Usable(use.label, choice.reason, spent)
    if not has_usable and not barred:
        raise _nothing_left(policy, choice, found, now_ms)
    return found if has_usable else [barred.get(one.label, one) for one in found]


def _role(
    catalogue: Catalogue, policy: Policy, use: LabelQuota, choice: Choice, *, has_begun: bool
) -> LabelRole:
    strict = policy.quota_enforcement is QuotaEnforcement.STRICT
    if choice.label is None and use.role is LabelRole.EXCEEDED and strict:
        return LabelRole.CHOSEN  # its quota is held against, and says by how much
    if use.role is not LabelRole.NOT_NEEDED or not has_begun:
        return use.role
    if use.label not in catalogue:
        return LabelRole.UNDEFINED
    if not _may_use(catalogue, policy, use.label):
        return LabelRole.DISABLED
    is_spent = use.status is QuotaStatus.EXCEEDED and not strict
    return LabelRole.EXCEEDED if is_spent else LabelRole.CHOSEN


def _unfit(
    catalogue: Catalogue, policy: Policy, request: AuthorizationRequest, choice: Choice
) -> Mapping[str, str]:
    """Why labels can't take a call of `auto`, for reasons other than quotas.

    Models with too short answers are skipped, unless all are: the deployment file may be older.
    """
    asked, least = request.max_output_tokens, request.least_output_tokens
    models = [catalogue.model(one) for one in policy.model_ordering if one in catalogue]
    unfit: dict[str, str] = {
        model.label: why
        for model in models
        if (why := _why_unfit(model, asked, least if model.writes_text else None))
    }
    if not asked:
        skipped = catalogue.skipped_by_auto(policy.model_ordering) - {choice.label}
        unfit |= dict.fromkeys(skipped, _ROLES[LabelRole.NO_TEXT])
    shorter = [one for one in models if one.max_output_tokens < asked]
    if least is None and any(
        one.label not in unfit and one not in shorter and _is_among(request, one.label)
        for one in models
    ):
        unfit = {one.label: too_short(one, asked) for one in shorter} | unfit
    return unfit


def _nothing_left(policy: Policy, choice: Choice, found: Labels, now_ms: int) -> PriceKeeperError:
    skipped = [one for one in found if isinstance(one, Considered)]
    if all(use.role is LabelRole.UNDEFINED for use in choice.quotas):
        denied_by = _spent_quota(policy, choice.quotas[0], now_ms)
        return AuthorizationDeniedError([denied_by], [(one.label, one.because) for one in skipped])
    meant = [one for one in skipped if one.because != _NOT_AMONG]
    names = ", ".join(one.label for one in meant)
    why = "; ".join(f"{one.label}: {one.because}" for one in meant)
    return InvalidValueError("model", f"none of {names} can take this call. {why}")


def _may_use(catalogue: Catalogue, policy: Policy, label: ModelLabel) -> bool:
    return label in catalogue and policy.quotas.get(label, 0) > 0


def find_label(catalogue: Catalogue, policy: Policy, model: str) -> ModelLabel:
    """The label of the ordering that a label, a model id or an ARN means."""
    ordering = policy.model_ordering
    if model in ordering and model in catalogue:
        return ModelLabel(model)
    label = next((one for one in catalogue.labels_of(model) if one in ordering), None)
    if label is None:
        raise UnknownModelLabelError(model, ordering, "model")
    return label


def _why_unfit(model: Model, asked_tokens: int, least_tokens: int | None) -> str:
    try:
        answer_tokens(model, asked_tokens, least_tokens)
    except InvalidValueError as error:
        return error.message
    return ""


def _is_among(request: AuthorizationRequest, label: str) -> bool:
    return not request.among or label in request.among


def _spent_quota(policy: Policy, use: LabelQuota, now_ms: int) -> DeniedBy:
    """A label that was given up needs more than its quota then."""
    by_app = policy.quota_scope is QuotaScope.APP and policy.app_id is not None
    scope = Scope.APP if by_app else Scope.ORG
    used_usd_micros = max(use.spend_usd_micros, use.given_up_at_usd_micros)
    return DeniedBy(
        Obstacle.QUOTA,
        f"quota-{use.label}",
        scope.value,
        use.label,
        1,
        (use.quota_usd_micros - used_usd_micros) * PICOS_PER_MICRO,
        next_midnight_ms(policy.timezone, now_ms),
    )
