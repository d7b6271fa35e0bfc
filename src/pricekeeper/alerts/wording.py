"""Words and facts that many alerts share. No I/O, no clock.

Sentences are short, because people read them in chats, in mails and on phones.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from pricekeeper import showing
from pricekeeper.alerts.alert import Owner, Party, foreign
from pricekeeper.days import date_of, day_start_ms, next_midnight_ms
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Policy

rfc3339: Final = showing.rfc3339


class Subject(NamedTuple):
    """The organisation or the app that an alert is about."""

    policy: Policy
    is_app: bool

    @property
    def words(self) -> str:
        """An app's name with that of its organisation."""
        if self.is_app and self.policy.app_name is not None:
            return f"{foreign(self.policy.app_name)} of {foreign(self.policy.org_name)}"
        return foreign(self.policy.org_name)

    @property
    def scope(self) -> str:
        return "APP" if self.is_app else "ORG"

    @property
    def target(self) -> list[str]:
        """Its ids, to be pasted into a shell.

        The quotes at an app id's dots keep mail programs from turning it into a link.
        """
        policy = self.policy
        ids = [policy.org_id, *([policy.app_id] if self.is_app and policy.app_id else [])]
        return [shlex.quote(one).replace(".", "'.'") for one in ids]

    def command(self, words: str) -> str:
        return " ".join(["pricekeeper", words, *self.target])

    def change(self, option: str) -> str:
        return f"{self.command('app set' if self.is_app else 'org set')} {option}"

    @property
    def party(self) -> Party:
        policy = self.policy
        owner = Owner(policy.org_id, policy.org_incarnation)
        app = (policy.app_id, policy.app_name) if self.is_app else (None, None)
        return Party(owner, policy.org_name, *app)


def subject_of(policy: Policy) -> Subject:
    """The client itself."""
    return Subject(policy, policy.app_id is not None)


def quota_subject(policy: Policy) -> Subject:
    """The client that the quotas belong to: under ORG scope, the organisation."""
    return Subject(policy, policy.scope_key != f"ORG#{policy.org_id}")


def day_ends_at_ms(policy: Policy, day: str) -> int:
    """The end of the organisation's day, when its quotas reset."""
    return next_midnight_ms(policy.timezone, day_start_ms(policy.timezone, day))


def local_minute(epoch_ms: int, zone: str) -> str:
    """A moment by the organisation's clock, such as ``2026-02-01 00:00 Europe/Berlin``."""
    at = datetime.fromtimestamp(epoch_ms // 1000, UTC).astimezone(ZoneInfo(zone))
    return f"{at:%Y-%m-%d %H:%M} {zone}"


def day_words(day: str) -> str:
    """A day as people write it: ``2026-01-23``."""
    return date_of(day).isoformat()


def micros_of(picos: int) -> int:
    """Micro-dollars, rounded down as in all answers."""
    return picos // PICOS_PER_MICRO
