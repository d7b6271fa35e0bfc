"""The operations of an app or organisation, on the caller's event loop.

A request whose reply is lost is sent again: ids keep it from counting twice.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final, Self, TypeVar, Unpack

from pricekeeper.client.answers import Authorization, Selection
from pricekeeper.client.asking import Asking
from pricekeeper.client.errors import DeniedError
from pricekeeper.client.fields import AuthorizeFields, UsageFields
from pricekeeper.client.tokens import OutsideTokens, Tokens
from pricekeeper.client.transport import TIMEOUT_SECS, HttpTransport, Transport, Wire
from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import InvalidValueError, SettingsError
from pricekeeper.settings import CLIENT_ID, CLIENT_SECRET, URL
from pricekeeper.values import new_request_id, parse_app_id
from pricekeeper.wire import operations as ops
from pricekeeper.wire.authorizations import (
    AuthorizationAnswer,
    AuthorizationList,
    BudgetList,
    CapturedAnswer,
    CapturesAnswer,
)
from pricekeeper.wire.operation import Operation, Pair
from pricekeeper.wire.provisioning import SessionList
from pricekeeper.wire.runtime import Acquired, BatchAnswer, LimitList, UsageAnswer
from pricekeeper.wire.spend import AggregateAnswer, AggregateRange, ForecastList, UsageList

A = TypeVar("A")
ENVIRONMENT: Final = (URL, CLIENT_ID, CLIENT_SECRET)


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
        client = parse_client_id(client_id)
        if app_id is not None:
            if client.app_id not in (None, app_id):
                raise InvalidValueError("app_id", f"{client_id} is another app")
            client = Client(client.org_id, parse_app_id(app_id))
        clock, wire = clock or SystemClock(), Wire(url, timeout_secs)
        kind = OutsideTokens if outside_slots else Tokens
        self.tokens: Tokens | None = kind(wire, client_id, client_secret, clock)
        self._begin(HttpTransport(wire, self.tokens, clock), client, clock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """From ``PRICEKEEPER_URL``, ``PRICEKEEPER_CLIENT_ID`` and ``PRICEKEEPER_CLIENT_SECRET``."""
        given = os.environ if environment is None else environment
        for name in ENVIRONMENT:
            if not given.get(name):
                raise SettingsError(name, "must be set: it comes with the app's credentials")
        return cls(*(given[name] for name in ENVIRONMENT))

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
        query = {"force_check": "true" if force_check else None}
        selected = Selection.of(await self._of_client(ops.SELECT_MODEL, query=query))
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
        body = {"resource": resource, "consume": dict(consume), "lease_id": named}
        return await self._of_client(ops.ACQUIRE, body=body)

    async def adjust(
        self, lease_id: str, delta: Mapping[str, int], *, adjustment_id: str | None = None
    ) -> None:
        """Settle a lease to the real use; each adjustment applies once."""
        body = {"adjustment_id": adjustment_id or str(uuid.uuid4()), "delta": dict(delta)}
        await self._of_client(ops.ADJUST, {"lease_id": lease_id}, body=body)

    async def release(self, lease_id: str) -> None:
        """Return everything that a lease holds."""
        await self._of_client(ops.RELEASE, {"lease_id": lease_id})

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
        body = {
            "input_tokens": input_tokens,
            "max_output_tokens": max_output_tokens,
            "model": model,
            **more,
        }
        if dry_run:
            body["dry_run"] = True
        else:
            body["authorization_id"] = authorization_id or self.new_request_id()
        return Authorization.of(await self._of_client(ops.AUTHORIZE, body=body))

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
        body = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}
        captured = await self._report(ops.CAPTURE, body, authorization_id)
        self._note_quota(None, captured)
        return captured

    async def capture_many(self, captures: Sequence[Mapping[str, Any]]) -> CapturesAnswer:
        """Capture up to 100 calls, each judged by itself."""
        answer = await self._report(ops.CAPTURE_MANY, {"captures": list(captures)})
        self._selected = None  # the answer does not contain the state of the quotas
        return answer

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        """Return everything that an authorization holds."""
        await self._report(ops.VOID, {} if reason is None else {"reason": reason}, authorization_id)

    async def extend(self, authorization_id: str, hold_secs: int) -> AuthorizationAnswer:
        """Hold an authorization for so long from now, if that is longer."""
        named = {"authorization_id": authorization_id}
        return await self._of_client(ops.EXTEND, named, body={"hold_secs": hold_secs})

    async def authorization(self, authorization_id: str) -> AuthorizationAnswer:
        """An authorization and its present state."""
        named = {"authorization_id": authorization_id}
        return await self._of_client(ops.GET_AUTHORIZATION, named)

    async def authorizations(
        self, *, status: str | None = None, after: str | None = None
    ) -> AuthorizationList:
        """A page of the open or unsettled authorizations, newest first."""
        query = {"status": status, "after": after}
        return await self._of_client(ops.LIST_AUTHORIZATIONS, query=query)

    async def budgets(self) -> BudgetList:
        """Every budget that applies, and what is left of it."""
        return await self._of_client(ops.LIST_BUDGETS)

    async def forecast(self) -> ForecastList:
        """Where each budget will end, and when it will be spent."""
        return await self._of_client(ops.GET_FORECAST)

    async def limits(self) -> LimitList:
        """The state of the app's buckets."""
        return await self._of_client(ops.LIST_LIMITS)

    async def usage(
        self, day: date | None = None, *, waits_for_limit: bool = False
    ) -> AggregateAnswer:
        """The totals of a day, today by default; an organisation's include all of its apps.

        ``waits_for_limit`` waits out a 429, a few times.
        """
        if day is None:
            return await self._of_client(ops.READ_TODAY, waits_for_limit=waits_for_limit)
        named = {"date": day.isoformat()}
        return await self._of_client(ops.READ_DAY, named, waits_for_limit=waits_for_limit)

    async def usage_between(self, first: date, last: date) -> AggregateRange:
        """The totals of each day of a range, both ends included."""
        query = {"from": first.isoformat(), "to": last.isoformat()}
        return await self._of_client(ops.READ_RANGE, query=query)

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
        query = {"from": first, "to": last, "label": label, "tag": tag, "after": after}
        query["app_id"] = self._client.app_id
        return await self._ask(ops.LIST_USAGE, {"org_id": self._client.org_id}, query=query)

    async def sessions(self) -> SessionList:
        """The live sessions of the client whose credentials these are."""
        return await self._ask(ops.LIST_OWN_SESSIONS, {})

    async def end_session(self, session_id: str) -> None:
        """End one of its sessions."""
        await self._ask(ops.END_OWN_SESSION, {"session_id": session_id})

    async def end_sessions(self) -> None:
        """End every session and every token of the client, including this one's."""
        await self._ask(ops.END_OWN_SESSIONS, {})

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

    async def _of_client(
        self,
        stated: Operation[A] | Pair[A, A],
        parameters: Mapping[str, str] | None = None,
        **more: Any,
    ) -> A:
        org_id, app_id = self._client
        named = {"org_id": str(org_id), **(parameters or {})}
        if isinstance(stated, Pair):
            stated = stated.wide if app_id is None else stated.narrow
        elif app_id is None:
            raise InvalidValueError("app_id", "is needed: use of_app(), or the app's credentials")
        if app_id is not None:
            named["app_id"] = app_id
        return await self._ask(stated, named, **more)

    async def _report(
        self, operation: Operation[A], body: Mapping[str, Any], authorization_id: str | None = None
    ) -> A:
        """Report usage; a 429 is waited out, so that the report arrives."""
        named = {} if authorization_id is None else {"authorization_id": authorization_id}
        return await self._of_client(operation, named, body=body, waits_for_limit=True)
