"""The events of the stream, as a viewer may see them."""

from __future__ import annotations

from typing import Final

from pricekeeper.activity import event as values
from pricekeeper.activity.items import ALL
from pricekeeper.authority import Coverage
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.usecases.authorizations import considered_labels, micros_up
from pricekeeper.usecases.flips import flip_answer
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import OrgId
from pricekeeper.wire import activity as wire
from pricekeeper.wire.values import Response, rfc3339

RESET: Final = "reset"
EVENTS: Final[dict[str, type[Response]]] = {
    "spend": wire.SpendEvent,
    "denied": wire.DeniedEvent,
    "flip": wire.FlipEvent,
    "authorization": wire.AuthorizationEvent,
    "alert": wire.AlertEvent,
    RESET: wire.ResetEvent,
}
"""The type of each event by its name."""


def audience_of(viewer: Viewer) -> str:
    """The feed that contains everything that the viewer may see."""
    return viewer.coverage.one or ALL


def tell(event: values.Event, viewer: Viewer) -> tuple[str, Response] | None:
    """The name and body of an event for the viewer; ``None`` if the viewer may not see it."""
    if not _is_covered(event, viewer.coverage):
        return None
    seen: values.Event | None = event
    if viewer.app_id is not None:
        seen = values.seen_by_app(event, viewer.app_id)
    if seen is None:
        return None
    response = _response(seen)
    return next(name for name, kind in EVENTS.items() if type(response) is kind), response


def _is_covered(event: values.Event, coverage: Coverage) -> bool:
    """Whether the coverage includes the event's organisation, or the deployment."""
    return coverage.is_all if event.org_id is None else OrgId(event.org_id) in coverage


def _response(event: values.Event) -> Response:
    if isinstance(event, values.CountedSpend):
        return _spend(event)
    if isinstance(event, values.DeniedCalls):
        return wire.DeniedEvent(
            org_id=event.org_id,
            at=rfc3339(event.at_ms),
            app_id=event.app_id,
            kind=event.kind,
            model=event.model,
            code=event.code,
            count=event.count,
            example=event.why,
        )
    if isinstance(event, values.Flip):
        answer = flip_answer(event)
        return wire.FlipEvent(*(getattr(answer, name) for name in answer.__struct_fields__))
    if isinstance(event, values.AuthorizationChanges):
        return _authorizations(event)
    return wire.AlertEvent(event.org_id, rfc3339(event.at_ms), event.app_id, event.told)


def _spend(event: values.CountedSpend) -> wire.SpendEvent:
    """Micro-dollars are rounded down, like those of a record."""
    rows = [
        wire.SpendEventRow(
            row.app_id,
            row.label,
            row.cost_usd_picos // PICOS_PER_MICRO,
            row.requests,
            row.errors,
            row.input_tokens,
            row.output_tokens,
            row.cache_read_tokens,
            row.cache_write_tokens,
        )
        for row in event.rows
    ]
    records = [
        wire.SpendEventRecord(
            one.request_id,
            one.app_id,
            one.label,
            rfc3339(one.happened_at_ms),
            one.cost_usd_picos // PICOS_PER_MICRO,
            one.input_tokens,
            one.output_tokens,
            one.cache_read_tokens,
            one.cache_write_tokens,
            "ERROR" if one.is_error else "OK",
            one.tags,
        )
        for one in event.records
    ]
    return wire.SpendEvent(event.org_id, rfc3339(event.at_ms), rows, records, event.more)


def _authorizations(event: values.AuthorizationChanges) -> wire.AuthorizationEvent:
    rows = [
        wire.AuthorizationEventRow(
            row.app_id,
            row.label,
            row.authorized,
            row.captured,
            row.voided,
            row.unsettled,
            held_usd_micros=micros_up(row.held_usd_picos),
            unsettled_usd_micros=micros_up(row.unsettled_usd_picos),
        )
        for row in event.rows
    ]
    entries = [_entry(line) for line in event.lines]
    return wire.AuthorizationEvent(event.org_id, rfc3339(event.at_ms), rows, entries, event.more)


def _entry(line: values.AuthorizationLine) -> wire.AuthorizationEventEntry:
    cost = line.cost_usd_picos
    more = {} if cost is None else {"cost_usd_micros": cost // PICOS_PER_MICRO}
    return wire.AuthorizationEventEntry(
        line.authorization_id,
        line.app_id,
        line.label,
        line.status,
        line.reason,
        held_usd_micros=micros_up(line.held_usd_picos),
        considered=considered_labels(line.considered),
        **more,
    )
