"""The audit trail, for administrators: what every person and key has changed."""

from __future__ import annotations

from typing import Final

from pricekeeper.audit.reading import CURSOR, PAGE_MAX
from pricekeeper.authority import Role
from pricekeeper.http.operation import AFTER, NO_STORE, Access, Answer, Call, Operation, Parameter
from pricekeeper.usecases import audit as cases
from pricekeeper.wire import administration as wire

_END: Final = {
    "type": "string",
    "anyOf": [{"format": "date"}, {"format": "date-time"}],
    "examples": ["2026-01-23", "2026-01-23T15:30:45Z"],
}
_FILTER: Final = {"type": "string", "minLength": 1, "maxLength": cases.FILTER_LENGTH_MAX}
_QUERY: Final = (
    Parameter(
        "org_id",
        "Entries of this organisation alone, also if it was deleted.",
        {"type": "string", "format": "uuid"},
    ),
    Parameter("actor", "By this actor, or all whose name has this before a slash.", _FILTER),
    Parameter("action", "Of this kind, or all that have this before a dot.", _FILTER),
    Parameter("from", "The first day in UTC, or the first moment.", _END),
    Parameter("to", "The last day in UTC, or the moment before which it ends.", _END),
    AFTER({"type": "string", "pattern": f"^{CURSOR}$"}),
    Parameter("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX}),
)


async def list_audit(call: Call) -> Answer:
    """Every change by a person or key, the newest first; a page may be empty and have a next."""
    request = cases.parse_request(call.query)
    return Answer(200, await cases.list_entries(call.services, request, call.coverage), NO_STORE)


OPERATIONS: Final = (
    Operation("GET", "/api/v1/audit", "listAudit", list_audit, {200: wire.AuditList},
              Access.PROVISIONING, role=Role.VIEWER, query=_QUERY, limit="provisioning",
              tag="audit", problems=(404,)),
)  # fmt: skip
