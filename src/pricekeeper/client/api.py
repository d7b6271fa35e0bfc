"""The calls of the REST contract, on the event loop of whoever makes them.

`PriceKeeper` and `AsyncPriceKeeper` stand on this; the command line uses it as it is.

What an app sends all day may be sent again when a reply is lost, and is: usage has its request
id, a lease and its adjustments have theirs, an authorization has its own, and asking changes
nothing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final, Self, Unpack

from pricekeeper.client.answers import Authorization, Captured, Lease, Recorded, Selection
from pricekeeper.client.errors import DeniedError
from pricekeeper.client.fields import AuthorizeFields, UsageFields
from pricekeeper.client.tokens import OutsideTokens, Tokens
from pricekeeper.client.transport import (
    TIMEOUT_SECS,
    HttpTransport,
    Request,
    RequestPath,
    Transport,
    Wire,
    path_of,
)
from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import InvalidValueError, SettingsError
from pricekeeper.settings import CLIENT_ID, CLIENT_SECRET, URL
from pricekeeper.values import new_request_id, parse_app_id

ENVIRONMENT: Final = (URL, CLIENT_ID, CLIENT_SECRET)
_SESSIONS: Final = path_of("auth", "sessions")


class Api:
    """One client of the service: an app, or an organisation, which may act for its apps.

    ``app_id`` names the app that an organisation acts for. ``outside_slots`` takes tokens that
    need no session, so that any number of processes can share one client's credentials. Use it as
    an async context manager, or call `close`: that ends the session.
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
        """A keeper on another transport, which knows the credentials."""
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
        """The model to call now, asked anew when the last answer has had its time.

        ``force_check`` sums the counters now. `QuotaSpentError` if there is no model today,
        `ClientFrozenError` if an administrator has frozen the app.
        """
        now_ms = self._clock.monotonic_ms()
        if self._selected is not None and now_ms < self._keep_until_ms and not force_check:
            return self._selected
        query = {"force_check": "true"} if force_check else {}
        selected = Selection.of(await self._get("model-selection", query=query))
        self._selected, self._keep_until_ms = selected, now_ms + selected.keep_secs * 1000
        return selected

    def new_request_id(self) -> str:
        """An id for one call's usage, with its time in it: that makes it cheap to count."""
        return new_request_id(self._clock.now_ms())

    async def record(
        self,
        model_label: str,
        input_tokens: int,
        output_tokens: int,
        *,
        request_id: str | None = None,
        **more: Unpack[UsageFields],
    ) -> Recorded:
        """Count what one call used, once: the same ``request_id`` again gets the same answer."""
        body = {
            "request_id": request_id or self.new_request_id(),
            "model_label": model_label,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            **more,
        }
        recorded = Recorded.of(await self._report("usage", body=body))
        self._note_quota(model_label, recorded)
        return recorded

    async def record_many(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Count up to 100 records, each with its ``request_id``; each is judged by itself."""
        answer = await self._report("usage", "batch", body={"requests": list(records)})
        self._selected = None  # the answer does not say how the quotas stand
        return answer

    async def acquire(
        self, resource: str, consume: Mapping[str, int], *, lease_id: str | None = None
    ) -> Lease:
        """Take from the buckets of a label, all or nothing; `RateLimitedError` says when."""
        named = lease_id or str(uuid.uuid4())
        body = {"resource": resource, "consume": dict(consume), "lease_id": named}
        answer = await self._post("limits", "acquire", body=body)
        return Lease(answer["lease_id"], answer["limits"])

    async def adjust(
        self, lease_id: str, delta: Mapping[str, int], *, adjustment_id: str | None = None
    ) -> None:
        """Settle a lease to what was really used; the same adjustment applies once."""
        body = {"adjustment_id": adjustment_id or str(uuid.uuid4()), "delta": dict(delta)}
        await self._post("leases", lease_id, "adjust", body=body)

    async def release(self, lease_id: str) -> None:
        """Give everything back that a lease holds."""
        await self._post("leases", lease_id, "release")

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
        """Ask whether a call may be made, with which model, and hold the most that it can cost.

        ``input_tokens`` is an upper bound of the whole prompt. `DeniedError` names everything that
        denies the call. The same ``authorization_id`` again is the same grant.
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
        return Authorization.of(await self._post("authorizations", body=body))

    async def label_of(self, model: str) -> str | None:
        """The label of a Bedrock model id, in whatever spelling; ``None`` if nobody says it.

        `RejectedError` if the service knows no such model. It asks what an authorization would be,
        which holds nothing; a denial names the label, too.
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
    ) -> Captured:
        """Count what an authorized call used, once, and release what was held for it."""
        body = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}
        captured = Captured.of(
            await self._report("authorizations", authorization_id, "capture", body=body)
        )
        self._note_quota(None, captured)
        return captured

    async def capture_many(self, captures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Capture up to 100 calls, each with its ``authorization_id``, and judged by itself."""
        answer = await self._report("captures", body={"captures": list(captures)})
        self._selected = None  # the answer does not say how the quotas stand
        return answer

    async def void(self, authorization_id: str, *, reason: str | None = None) -> None:
        """Give everything back that an authorization holds: the model was never reached."""
        body = {} if reason is None else {"reason": reason}
        await self._report("authorizations", authorization_id, "void", body=body)

    async def extend(self, authorization_id: str, hold_secs: int) -> dict[str, Any]:
        """Hold an authorization for so long from now, if that is longer."""
        body = {"hold_secs": hold_secs}
        return await self._post("authorizations", authorization_id, "extend", body=body)

    async def authorization(self, authorization_id: str) -> dict[str, Any]:
        """An authorization, and what has become of it."""
        return await self._get("authorizations", authorization_id)

    async def authorizations(
        self, *, status: str | None = None, after: str | None = None
    ) -> dict[str, Any]:
        """A page of the authorizations that are open or unsettled, the newest first."""
        query = {"status": status, "after": after}
        given = {name: value for name, value in query.items() if value is not None}
        return await self._get("authorizations", query=given)

    async def budgets(self) -> dict[str, Any]:
        """Every budget that applies, and what is left of it."""
        return await self._get("budgets")

    async def forecast(self) -> dict[str, Any]:
        """Where every budget that applies will end, and when it will be spent."""
        return await self._get("forecast")

    async def limits(self) -> dict[str, Any]:
        """How the app's buckets stand."""
        return await self._get("limits")

    async def usage(
        self, day: date | None = None, *, waits_for_limit: bool = False
    ) -> dict[str, Any]:
        """What a day came to; today, if none is named. An organisation's is of all its apps.

        ``waits_for_limit`` is for who reads many: a 429 is waited out, a few times.
        """
        named = "today" if day is None else day.isoformat()
        path = path_of(*self._base, "aggregates", named)
        return await self._send("GET", path, waits_for_limit=waits_for_limit)

    async def usage_between(self, first: date, last: date) -> dict[str, Any]:
        """What each day of a range came to, both ends included."""
        query = {"from": first.isoformat(), "to": last.isoformat()}
        return await self._get("aggregates", query=query)

    async def usage_records(
        self,
        *,
        first: str | None = None,
        last: str | None = None,
        label: str | None = None,
        tag: str | None = None,
        after: str | None = None,
    ) -> dict[str, Any]:
        """A page of single usage records, the newest first; it may be empty and have a next.

        ``tag`` is ``KEY:VALUE``, or ``KEY:`` for records that have no such tag or an empty one.
        """
        query = {"from": first, "to": last, "label": label, "tag": tag, "after": after}
        query["app_id"] = self._client.app_id
        given = {name: value for name, value in query.items() if value is not None}
        path = path_of("api", "v1", "orgs", self._client.org_id, "usage")
        return await self._send("GET", path, given)

    async def sessions(self) -> dict[str, Any]:
        """The live sessions of the client whose credentials these are."""
        return await self._send("GET", _SESSIONS)

    async def end_session(self, session_id: str) -> None:
        """End one of its sessions."""
        await self._send("DELETE", path_of("auth", "sessions", session_id))

    async def end_sessions(self) -> None:
        """End every session and every token of the client, this one's too."""
        await self._send("DELETE", _SESSIONS)

    def of_app(self, app_id: str) -> Api:
        """An app of this organisation, over the same connections: it need not be closed."""
        return Api.over(self._transport, Client(self._client.org_id, parse_app_id(app_id)))

    async def close(self) -> None:
        """End the session and let go of the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _note_quota(self, label: str | None, recorded: Recorded) -> None:
        """Forget the selection if a quota that it was made by has become tight, or is spent.

        One that was tight already stays for its time, which is short: else every call would ask.
        """
        selected = self._selected
        if selected is None or label not in (None, selected.label):
            return
        if recorded.mode == "EXCEEDED" or (recorded.mode == "TIGHT" and selected.mode == "NORMAL"):
            self._selected = None

    async def _get(self, *path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self._send("GET", path_of(*self._base, *path), query)

    async def _post(self, *path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._send("POST", path_of(*self._base, *path), body=body)

    async def _report(self, *path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post what was used: also if the service limits us, it is to arrive."""
        whole = path_of(*self._base, *path)
        return await self._send("POST", whole, body=body, waits_for_limit=True)

    async def _send(
        self,
        method: str,
        path: RequestPath,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        waits_for_limit: bool = False,
    ) -> dict[str, Any]:
        request = Request(
            method,
            path,
            query or {},
            body,
            repeatable=method != "DELETE",
            waits_for_limit=waits_for_limit,
        )
        answer: dict[str, Any] | None = await self._transport.send(request)
        return answer or {}

    @property
    def _base(self) -> tuple[str, ...]:
        org = ("api", "v1", "orgs", self._client.org_id)
        return org if self._client.app_id is None else (*org, "apps", self._client.app_id)
