"""Decides who may raise the budgets and quotas of an organisation. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pricekeeper.authority import Attribution, Reach
from pricekeeper.errors import NotPermittedError
from pricekeeper.tenants.configuration import Budget, Enforcement, OrgSettings, QuotaEnforcement

_SAME_SETTINGS: Final = ("timezone", "quota_scope")
"""A change of these begins other windows or accounts, in which nothing is spent yet."""


class BudgetRule:
    """Decides who may raise the budgets of an organisation.

    Its own administrators may lower its hard budgets and quotas, and add budgets. Only a key for
    all organisations may raise or remove them, unless the deployment allows it. The store does not
    record who set a budget, so the rule covers all. An app's budgets are the organisation's own.
    """

    def __init__(self, *, orgs_set_budgets: bool = False) -> None:
        self._reach = Reach.ORG if orgs_set_budgets else Reach.ALL

    def require_reach(self, by: Attribution, what: str) -> None:
        if by.reach < self._reach:
            raise NotPermittedError(
                f"{what} takes a key for all organisations; "
                "PRICEKEEPER_ORG_ADMINS_SET_BUDGETS=1 leaves it to keys of the organisation"
            )

    def require_kept(self, before: OrgSettings | None, after: OrgSettings, by: Attribution) -> None:
        """Raise `NotPermittedError` with everything that the change would raise or remove.

        ``before`` is ``None`` if the organisation is new or unreadable.
        """
        if before is None:
            self.require_reach(by, "setting the first budgets and quotas of an organisation")
        elif raised := list(_raised(before, after)):
            self.require_reach(by, f"raising or removing {', '.join(raised)}")


def _raised(before: OrgSettings, after: OrgSettings) -> Iterator[str]:
    yield from (name for name in _SAME_SETTINGS if getattr(before, name) != getattr(after, name))
    strict = QuotaEnforcement.STRICT
    if before.quota_enforcement is strict and after.quota_enforcement is not strict:
        yield "quota_enforcement"
    for label in sorted({*before.quotas, *after.quotas}):
        old, new = before.quotas.get(label), after.quotas.get(label)
        if old is None or new is None or new > old:
            yield f"quotas.{label}"
    now = {budget.name: budget for budget in after.budgets}
    for budget in before.budgets:
        if budget.enforcement is Enforcement.HARD and not _holds(now.get(budget.name), budget):
            yield f"budgets.{budget.name}"


def _holds(new: Budget | None, old: Budget) -> bool:
    return (
        new is not None
        and new.enforcement is Enforcement.HARD
        and new.limit_usd_micros <= old.limit_usd_micros
        and (new.window, new.per_tag) == (old.window, old.per_tag)
        and frozenset(new.labels) == frozenset(old.labels)
    )
