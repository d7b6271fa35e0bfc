"""Turns results of features into events of the feed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from pricekeeper.activity import AlertNotice, AuthorizationLine, Counted
from pricekeeper.activity.feed import Feed
from pricekeeper.alerts import alert as alerts
from pricekeeper.alerts.alert import alert_body
from pricekeeper.authorizations import Authorization, State
from pricekeeper.metering import Submission


class NewsTeller:
    """Writes events to the feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def note_counted(self, submissions: Sequence[Submission]) -> None:
        news = self._feed.news_of(submissions[0].org_id)
        if news is None:
            return
        for one in submissions:
            terms, tokens = one.terms, one.tokens
            written = tokens.cache_write_5m_tokens + tokens.cache_write_1h_tokens
            news.note_counted(
                (terms.app_id, terms.label),
                (
                    one.cost_usd_picos,
                    1,
                    int(one.is_error),
                    tokens.input_tokens,
                    tokens.output_tokens,
                    tokens.cache_read_tokens,
                    written,
                ),
                partial(_counted, one),
            )

    def note_changed(self, org_id: str, changed: list[Authorization]) -> None:
        news = self._feed.news_of(org_id)
        if news is None:
            return
        for one in changed:
            terms, held = one.grant.terms, one.grant.held_usd_picos
            pair = (terms.app_id, terms.label)
            news.note_authorization(pair, one.state.value, held, partial(_line, one))

    def note_alert(self, alert: alerts.Alert) -> None:
        if not self._feed.is_on:
            return
        party, body = alert.finding.party, msgspec.json.decode(alert_body(alert))
        self._feed.note_alert(AlertNotice(party.owner.org_id, alert.at_ms, party.app_id, body))


def _line(authorization: Authorization) -> AuthorizationLine:
    grant, settlement = authorization.grant, authorization.settlement
    captured = authorization.state is State.CAPTURED and settlement is not None
    return AuthorizationLine(
        authorization.shown_id,
        grant.terms.app_id,
        grant.terms.label,
        authorization.state.value,
        grant.reason,
        grant.held_usd_picos,
        settlement.cost_usd_picos if captured and settlement is not None else None,
        tuple([(one.label, one.because) for one in grant.considered]),
    )


def _counted(submission: Submission) -> Counted:
    terms, tokens = submission.terms, submission.tokens
    return Counted(
        submission.request_id,
        terms.app_id,
        terms.label,
        submission.happened_at_ms,
        submission.cost_usd_picos,
        tokens.input_tokens,
        tokens.output_tokens,
        tokens.cache_read_tokens,
        tokens.cache_write_5m_tokens + tokens.cache_write_1h_tokens,
        submission.is_error,
        dict(terms.tags) if terms.tags else {},
    )
