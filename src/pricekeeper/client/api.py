"""The operations of an app or organisation, on the caller's event loop.

A request whose reply is lost is sent again: ids keep it from counting twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Self, TypeVar, Unpack

from pricekeeper.client.answers import Authorization, Selection
from pricekeeper.client.asking import Asking, Given, asks, nothing
from pricekeeper.client.configuration import KeeperSettings, acting_client
from pricekeeper.client.errors import DeniedError
from pricekeeper.client.fields import AuthorizeFields, UsageFields
from pricekeeper.client.tokens import OutsideTokens, Tokens
from pricekeeper.client.transport import TIMEOUT_SECS, HttpTransport, Transport, Wire
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.values import new_request_id, parse_app_id
from pricekeeper.wire import operations as ops
from pricekeeper.wire.authorizations import CapturedAnswer, CapturesAnswer
from pricekeeper.wire.operation import Operation
from pricekeeper.wire.runtime import Acquired, Adjusted, BatchAnswer, UsageAnswer
from pricekeeper.wire.spend import AggregateAnswer, UsageList

A = TypeVar("A")


def _lease(lease_id: str) -> Given:
    return {"lease_id": lease_id}


def _authorization(authorization_id: str) -> Given:
    return {"authorization_id": authorization_id}


def _hold(authorization_id: str, hold_secs: int) -> Given:
    return {"authorization_id": authorization_id, "hold_secs": hold_secs}


def _unfinished(*, status: str | None = None, after: str | None = None) -> Given:
    return {"status": status, "after": after}


def _days(first: date, last: date) -> Given:
    return {"from": first.isoformat(), "to": last.isoformat()}


def _session(session_id: str) -> Given:
    return {"session_id": session_id}


class Api(Asking):
    """One client of the service: an app, or an organisation, which may act for its apps.

    ``app_id`` names that app. ``outside_slots`` takes tokens without a session, so any number of
    processes can share the credentials. `close` ends the session.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        *,
        app_id: str | None = None,
        clock: Clock | None = None,
        timeout_secs: float = TIMEOUT_SECS,
        outside_slots: bool = False,
    ) -> None:
        client = acting_client(client_id, app_id)
        clock, wire = clock or SystemClock(), Wire(url, timeout_secs)
        kind = OutsideTokens if outside_slots else Tokens
        self.tokens: Tokens | None = kind(wire, client_id, client_secret, clock)
        self._begin(HttpTransport(wire, self.tokens, clock), client, clock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """From ``PRICEKEEPER_URL``, ``PRICEKEEPER_CLIENT_ID`` and ``PRICEKEEPER_CLIENT_SECRET``."""
        given = KeeperSettings.read({}, environment)
        return cls(given.url, given.client_id, given.client_secret)

    @classmethod
    def over(cls, transport: Transport, client: Client) -> Self:
        made = cls.__new__(cls)
        made.tokens = None
        made._begin(transport, client, SystemClock())  # noqa: SLF001  # its own constructor
        return made

    def _begin(self, transport: Transport, client: Client, clock: Clock) -> None:
        self._transport = transport
        self._client = client
        self._clock = clock
        self._selected: Selection | None = None
        self._keep_until_ms = 0

    async def select(self, *, force_check: bool = False) -> Selection:
        """The model to call now; the last answer is reused for as long as it says.

        ``force_check`` sums the counters now. Raises `QuotaSpentError` or `ClientFrozenError`.
        """
        now_ms = self._clock.monotonic_ms()
        if self._selected is not None and now_ms < self._keep_until_ms and not force_check:
            return self._selected
        given = {"force_check": "true" if force_check else None}
        selected = Selection.of(await self.ask(ops.SELECT_MODEL, given))
        self._selected, self._keep_until_ms = selected, now_ms + selected.keep_secs * 1000
        return selected

    def new_request_id(self) -> str:
        """An id for one call's usage. It contains the time, which makes recording cheaper."""
        return new_request_id(self._clock.now_ms())

    async def record(
        self,
        model_label: str,
        input_tokens: int,
        output_tokens: int,
        *,
        request_id: str | None = None,
        **more: Unpack[UsageFields],
    ) -> UsageAnswer:
        """Count one call's usage, once: the same ``request_id`` again gets the same answer."""
        body = {
            "request_id": request_id or self.new_request_id(),
            "model_label": model_label,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            **more,
        }
        recorded = await self._report(ops.RECORD_USAGE, body)
        self._note_quota(model_label, recorded)
        return recorded

    async def record_many(self, records: Sequence[Mapping[str, Any]]) -> BatchAnswer:
        """Count up to 100 records, each judged by itself."""
        answer = await self._report(ops.RECORD_BATCH, {"requests": list(records)})
        self._selected = None  # the answer does not contain the state of the quotas
        return answer

    async def acquire(
        self, resource: str, consume: Mapping[str, int], *, lease_id: str | None = None
    ) -> Acquired:
        """Take from the buckets of a label, all or nothing; `RateLimitedError` says when."""
        named = lease_id or str(uuid.uuid4())
        return await self.ask(
            ops.ACQUIRE, {"resource": resource, "consume": dict(consume), "lease_id": named}
        )

    async def adjust(
        self, lease_id: str, delta: Mapping[str, int], *, adjustment_id: str | None = None
    ) -> Adjusted:
        """Settle a lease to the real use; each adjustment applies once."""
        named = {"lease_id": lease_id, "adjustment_id": adjustment_id or str(uuid.uuid4())}
        return await self.ask(ops.ADJUST, {**named, "delta": dict(delta)})

    async def authorize(
        self,
        input_tokens: int,
        max_output_tokens: int,
        *,
        model: str = "auto",
        authorization_id: str | None = None,
        dry_run: bool = False,
        **more: Unpack[AuthorizeFields],
    ) -> Authorization:
        """Authorize a call: choose its model and hold its maximum cost; else raise `DeniedError`.

        ``input_tokens`` is an upper bound of the whole prompt. The same ``authorization_id`` again
        is the same grant.
        """
        named = None if dry_run else authorization_id or self.new_request_id()
        given = {
            "input_tokens": input_tokens,
            "max_output_tokens": max_output_tokens,
            "model": model,
            "authorization_id": named,
            "dry_run": dry_run or None,
            **more,
        }
        return Authorization.of(await self.ask(ops.AUTHORIZE, given))

    async def label_of(self, model: str) -> str | None:
        """The label of a Bedrock model id in any spelling; ``None`` if it is not known.

        It tries an authorization, which holds nothing. `RejectedError` if the service knows no such
        model.
        """
        try:
            return (await self.authorize(1, 1, model=model, dry_run=True)).label
        except DeniedError as error:
            return next((str(one["label"]) for one in error.considered), None)

    async def capture(
        self,
        authorization_id: str,
        input_tokens: int,
        output_tokens: int,
        **more: Unpack[UsageFields],
    ) -> CapturedAnswer:
        """Count what an authorized call used, once, and release its hold."""
        used = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}
        captured = await self._report(ops.CAPTURE, {"authorization_id": authorization_id, **used})
        self._note_quota(None, captured)
        return captured

    async def capture_many(self, captures: Sequence[Mapping[str, Any]]) -> CapturesAnswer:
        """Capture up to 100 calls, each judged by itself."""
        answer = await self._report(ops.CAPTURE_MANY, {"captures": list(captures)})
        self._selected = None  # the answer does not contain the state of the quotas
        return answer

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        """Return everything that an authorization holds."""
        await self._report(ops.VOID, {"authorization_id": authorization_id, "reason": reason})

    release = asks(ops.RELEASE, _lease)
    extend = asks(ops.EXTEND, _hold)
    authorization = asks(ops.GET_AUTHORIZATION, _authorization)
    authorizations = asks(ops.LIST_AUTHORIZATIONS, _unfinished)
    budgets = asks(ops.LIST_BUDGETS, nothing)
    forecast = asks(ops.GET_FORECAST, nothing)
    limits = asks(ops.LIST_LIMITS, nothing)
    usage_between = asks(ops.READ_RANGE, _days)
    sessions = asks(ops.LIST_OWN_SESSIONS, nothing)
    end_session = asks(ops.END_OWN_SESSION, _session)
    end_sessions = asks(ops.END_OWN_SESSIONS, nothing)

    async def usage(
        self, day: date | None = None, *, waits_for_limit: bool = False
    ) -> AggregateAnswer:
        """The totals of a day, today by default; an organisation's include all of its apps.

        ``waits_for_limit`` waits out a 429, a few times.
        """
        if day is None:
            return await self.ask(ops.READ_TODAY, waits_for_limit=waits_for_limit)
        given = {"date": day.isoformat()}
        return await self.ask(ops.READ_DAY, given, waits_for_limit=waits_for_limit)

    async def usage_records(
        self,
        *,
        first: str | None = None,
        last: str | None = None,
        label: str | None = None,
        tag: str | None = None,
        after: str | None = None,
    ) -> UsageList:
        """A page of usage records, newest first; an empty page may have a next one.

        ``tag`` is ``KEY:VALUE``, or ``KEY:`` for records without the tag or with an empty value.
        """
        given = {"from": first, "to": last, "label": label, "tag": tag, "after": after}
        return await self.ask(ops.LIST_USAGE, {**given, "app_id": self._client.app_id})

    def of_app(self, app_id: str) -> Api:
        """An app of this organisation, over the same connections: it need not be closed."""
        return Api.over(self._transport, Client(self._client.org_id, parse_app_id(app_id)))

    def _note_quota(self, label: str | None, recorded: UsageAnswer) -> None:
        """Forget the selection when one of its quotas becomes tight or is spent."""
        selected = self._selected
        if selected is None or label not in (None, selected.label):
            return
        if recorded.mode == "EXCEEDED" or (recorded.mode == "TIGHT" and selected.mode == "NORMAL"):
            self._selected = None

    def _own(self) -> dict[str, str]:
        org_id, app_id = self._client
        return {"org_id": org_id} if app_id is None else {"org_id": org_id, "app_id": app_id}

    async def _report(self, operation: Operation[A], given: Given) -> A:
        """Report usage; a 429 is waited out, so that the report arrives."""
        return await self.ask(operation, given, waits_for_limit=True)
