"""Events for tests."""

from typing import Any

from pricekeeper.activity import AuthorizationLine, Counted, Denial, DeniedKind, Flip, GivenUp
from pricekeeper.activity.buffer import OrgNews
from pricekeeper.activity.feed import Feed

ORG = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
OTHER_ORG = "11111111-7425-40de-944b-e07fc1f90ae7"


def counted(request_id: str = "r", **changes: Any) -> Counted:
    fields: dict[str, Any] = {
        "app_id": "web",
        "label": "premium",
        "happened_at_ms": 1,
        "cost_usd_picos": 5_000_000,
        "input_tokens": 3,
        "output_tokens": 2,
        "cache_read_tokens": 1,
        "cache_write_tokens": 4,
        "is_error": False,
        "tags": {},
        **changes,
    }
    return Counted(request_id, **fields)


def line(authorization_id: str = "a", **changes: Any) -> AuthorizationLine:
    fields: dict[str, Any] = {
        "app_id": "web",
        "label": "premium",
        "status": "open",
        "reason": "NORMAL",
        "held_usd_picos": 7_000_000,
        "cost_usd_picos": None,
        "considered": (("premium", ""),),
        **changes,
    }
    return AuthorizationLine(authorization_id, **fields)


def note(news: OrgNews, one: Counted | AuthorizationLine) -> None:
    pair = (one.app_id, one.label)
    if isinstance(one, AuthorizationLine):
        news.note_authorization(pair, one.status, one.held_usd_picos, lambda: one)
        return
    tokens = (one.input_tokens, one.output_tokens, one.cache_read_tokens, one.cache_write_tokens)
    news.note_counted(pair, (one.cost_usd_picos, 1, int(one.is_error), *tokens), lambda: one)


def note_counted(feed: Feed, org_id: str, record: Counted) -> None:
    news = feed.news_of(org_id)
    if news is not None:
        note(news, record)


def flip(**changes: Any) -> Flip:
    fields: dict[str, Any] = {
        "org_id": ORG,
        "at_ms": 5,
        "app_id": "web",
        "reason": "QUOTA_EXCEEDED",
        "from_label": "premium",
        "to_label": "standard",
        "given_up": (GivenUp("premium", 9, 8),),
        "until_ms": 99,
        **changes,
    }
    return Flip(**fields)


def denial(at_ms: int, **changes: Any) -> Denial:
    fields: dict[str, Any] = {
        "org_id": ORG,
        "app_id": "web",
        "kind": DeniedKind.AUTHORIZATION,
        "model": "premium",
        "code": "QUOTA_EXCEEDED",
        "at_ms": at_ms,
        "obstacles": ("QUOTA/APP/quota-premium/premium",),
        "why": {"detail": "no room", "client_id": "org-x-app-web"},
        **changes,
    }
    return Denial(**fields)
