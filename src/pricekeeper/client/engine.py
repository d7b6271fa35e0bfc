"""The work of a keeper in one process, for callers on any thread or event loop.

Requests run on one thread with its own event loop, and every wait has a deadline. Usage goes into
the spool first.

If the service does not answer, the breaker opens and the chosen mode applies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Final, TypeVar, Unpack

from pricekeeper.client.answers import Authorization, Settled
from pricekeeper.client.api import Api
from pricekeeper.client.blind import PROMPT_TOKENS_MAX, BlindCalls, rfc3339
from pricekeeper.client.configuration import KeeperSettings
from pricekeeper.client.errors import (
    BreakerOpenError,
    ClientFrozenError,
    ForbiddenError,
    NoAnswerError,
    QuotaSpentError,
    RejectedError,
    ServiceError,
    ServiceProblem,
    SpoolFullError,
    UnavailableError,
    invalid_request,
)
from pricekeeper.client.fields import AuthorizeFields, UsageFields
from pricekeeper.client.memory import Memory
from pricekeeper.client.snapshot import Snapshot
from pricekeeper.client.spool import Spool, SpoolEntry, find_folder
from pricekeeper.client.telling import Teller
from pricekeeper.client.threads import LoopThread
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import InvalidValueError
from pricekeeper.tags import check_tags

BACKOFF: Final = Backoff(500, 30_000)
"""Pauses between probes. The first value is the minimum."""
SNAPSHOT_EVERY_MS: Final = 300_000
STOP_SECS: Final = 0.5
_INTERNAL: Final = HTTPStatus.INTERNAL_SERVER_ERROR

T = TypeVar("T")
_log = logging.getLogger("pricekeeper")


class Engine:
    """A keeper's engine in one process, for any thread."""

    def __init__(self, configuration: KeeperSettings, clock: Clock | None = None) -> None:
        self.configuration = configuration
        self.pid = os.getpid()
        self.spool = Spool(
            find_folder(configuration.spool_dir, configuration.url, configuration.client.client_id)
        )
        self._clock = clock or SystemClock()
        self._failures = 0
        """In a row; the breaker opens at the first one."""
        self._blind = BlindCalls(configuration, self._clock, Memory(self.spool.folder))
        self._loop = LoopThread("pricekeeper")
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_probing = False
        self.api: Api
        self._teller: Teller
        self._loop.submit(self._begin()).result()

    @property
    def is_cut_off(self) -> bool:
        """Whether the breaker is open, so callers do not wait."""
        return self._failures > 0

    async def _begin(self) -> None:
        given = self.configuration
        self.api = Api(
            given.url,
            given.client_id,
            given.client_secret,
            app_id=given.app_id,
            clock=self._clock,
            outside_slots=True,
        )
        self._teller = Teller(
            self.spool, self.api, self._clock, self._note_answer, self._blind.note_told
        )
        self._start(self._teller.run())
        if given.on_unavailable != "deny":
            self._start(self._keep_snapshot())

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the engine's loop; `RuntimeError` if the engine is closed.

        An authorization that arrives after its caller has given up is voided.
        """
        return self._loop.submit(work, self.take_back)

    def take_back(self, answer: object) -> None:
        if isinstance(answer, Authorization) and answer.id:
            self.give_back(answer, "its caller was gone")

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_cut_off:
            work.close()
            raise BreakerOpenError(self.configuration.url)
        try:
            async with self._deadline():
                answer = await work
        except TimeoutError:
            self._fail()
            raise NoAnswerError(self.configuration.url, self.configuration.deadline_ms) from None
        except UnavailableError:
            self._fail()
            raise
        self._note_answer()
        return answer

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
        returns the same grant.
        """
        if self.spool.is_full:
            raise SpoolFullError(self.configuration.url)
        tags = more.get("tags", {})
        try:
            check_tags(tags)
        except InvalidValueError as error:
            raise invalid_request(error) from None
        named = authorization_id or self.api.new_request_id()
        try:
            authorization = await self.ask(
                self.api.authorize(
                    input_tokens,
                    max_output_tokens,
                    model=model,
                    authorization_id=named,
                    dry_run=dry_run,
                    **more,
                )
            )
        except UnavailableError as error:
            if dry_run:
                raise
            if not isinstance(error, BreakerOpenError):
                self.void(named, reason="its answer was lost")
            blind = await self._blind.allow(model, input_tokens, max_output_tokens, tags)
            if blind is None:
                raise
            return blind
        except BaseException as error:
            is_refusal = isinstance(error, ServiceError) and error.status < _INTERNAL
            if not dry_run and not is_refusal:  # cancelled, or unreadable
                self.void(named, reason="its answer was not taken")
            raise
        if self.configuration.on_unavailable != "deny":
            self._blind.note_authorization(model, authorization)
        return authorization

    def settle(
        self,
        authorization: Authorization,
        usage: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Report what a call used, in the background."""
        if authorization.is_blind:
            self._tell(self._blind.entry(authorization, usage, tags))
        else:
            self._tell(SpoolEntry("capture", authorization.id, dict(usage), self._clock.now_ms()))

    def give_back(self, authorization: Authorization, reason: str) -> None:
        """Void the hold of a call that was not made."""
        if not authorization.is_blind:
            self.void(authorization.id, reason=reason)

    def leave_unknown(
        self,
        authorization: Authorization,
        input_tokens: int,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Charge a call of unknown usage at its maximum: by its hold, or a blind call's record."""
        if authorization.is_blind:
            most = {
                "input_tokens": min(input_tokens, PROMPT_TOKENS_MAX),
                "output_tokens": authorization.max_output_tokens,
                "bedrock_model_id": authorization.model_id,
                "status": "ERROR",
            }
            self.settle(authorization, most, tags)

    def void(self, authorization_id: str, *, reason: str = "") -> None:
        body = {"reason": reason} if reason else {}
        if not self._blind.is_open(authorization_id):  # a blind call has no hold
            self._tell(SpoolEntry("void", authorization_id, body, self._clock.now_ms()))

    async def capture(
        self,
        authorization_id: str,
        input_tokens: int,
        output_tokens: int,
        **more: Unpack[UsageFields],
    ) -> Settled | None:
        """Count what an authorized call used, once, and release its hold.

        It is spooled first. ``None`` if no answer came within the deadline: it is reported later.
        """
        body = {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}
        blind = self._blind.settled(authorization_id, body)
        return await self._tell_and_wait(
            blind or SpoolEntry("capture", authorization_id, body, self._clock.now_ms())
        )

    async def record(
        self,
        model_label: str,
        input_tokens: int,
        output_tokens: int,
        *,
        request_id: str | None = None,
        **more: Unpack[UsageFields],
    ) -> Settled | None:
        """Count one call's usage, once: the same ``request_id`` again changes nothing.

        It is spooled first. ``None`` if no answer came within the deadline: it is reported later.
        """
        body: dict[str, Any] = {
            "model_label": model_label,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            **more,
        }
        if request_id is None:  # under a caller's id, a repeated body must stay the same
            request_id = self.api.new_request_id()
            body.setdefault("timestamp", rfc3339(self._clock.now_ms()))
        return await self._tell_and_wait(
            SpoolEntry("usage", request_id, body, self._clock.now_ms())
        )

    async def flush(self) -> int:
        """Report everything that waits, unless the breaker is open; returns how many are left."""
        if not self.is_cut_off:
            try:
                async with self._deadline():
                    await self._teller.flush()
            except TimeoutError:
                self._note_unanswered()
        return len(self.spool)

    def close(self) -> None:
        """Report what waits, within the deadline, and stop. The rest stays in the spool."""
        if self.pid == os.getpid():
            wait_secs = self.configuration.deadline_ms / 1000
            # RuntimeError: the engine is closed, or the ending interpreter starts no more threads.
            with contextlib.suppress(TimeoutError, ServiceError, RuntimeError):
                self._loop.submit(self._end()).result(wait_secs + STOP_SECS)
            self._loop.stop(STOP_SECS)
            self.spool.close()

    def abandon(self) -> None:
        """After a fork: leave everything to the parent."""
        self.spool.abandon()

    async def _end(self) -> None:
        if len(self.spool):
            await self.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()

    def _tell(self, entry: SpoolEntry) -> SpoolEntry | None:
        kept = self.spool.append(entry)
        if not self._teller.is_awake:
            with contextlib.suppress(
                RuntimeError
            ):  # the loop is closed; the entry stays in the spool
                self._loop.call(self._teller.wake)
        return kept

    async def _tell_and_wait(self, entry: SpoolEntry) -> Settled | None:
        kept = self._tell(entry)
        if kept is None:
            raise SpoolFullError(self.configuration.url)
        if self.is_cut_off:
            return None
        expected = self._teller.expect(kept)
        try:
            async with self._deadline():
                result = await expected
        except TimeoutError:
            self._note_unanswered()
            return None
        if result["status"] == "failed":
            raise RejectedError(ServiceProblem(400, result["code"], result.get("detail", "")))
        return Settled.of(entry.id, result)

    def _deadline(self) -> asyncio.Timeout:
        return asyncio.timeout(self.configuration.deadline_ms / 1000)

    def _note_unanswered(self) -> None:
        """Open the breaker, unless the wait was for other processes' entries."""
        if self._teller.unanswered_ms >= self.configuration.deadline_ms // 2:
            self._fail()

    def _note_answer(self) -> None:
        if self.is_cut_off:
            _log.warning("the price keeper at %s answers again", self.configuration.url)
            self._failures = 0
            self._teller.resume()

    def _fail(self) -> None:
        if not self.is_cut_off:
            _log.warning("the price keeper at %s does not answer", self.configuration.url)
        self._failures += 1
        if not self._is_probing:
            self._is_probing = True
            self._start(self._probe())

    def _pause_ms(self) -> int:
        """The pause before the next probe. It doubles with each failure."""
        return BACKOFF.first_ms + BACKOFF.pause_ms(max(1, self._failures), secrets.randbelow)

    async def _probe(self) -> None:
        try:
            while self.is_cut_off:
                await self._clock.sleep_ms(self._pause_ms())
                if self.is_cut_off:
                    await self._try_once()
        finally:
            self._is_probing = False

    async def _try_once(self) -> None:
        try:
            async with self._deadline():
                await self.api.budgets()
        except (UnavailableError, TimeoutError):
            self._failures += 1
        except ServiceError:
            self._note_answer()
        except Exception as error:  # noqa: BLE001 - what answers is not the service
            _log.debug("what answers is not the price keeper: %r", error)
            self._failures += 1
        else:
            self._note_answer()

    async def _keep_snapshot(self) -> None:
        while True:
            try:
                await self._learn()
            except Exception as error:  # noqa: BLE001 - the next one may be better
                _log.debug("what the service allows can't be read: %r", error)
            wait_ms = SNAPSHOT_EVERY_MS if self._blind.is_ready else self._pause_ms()
            await self._clock.sleep_ms(wait_ms)

    async def _learn(self) -> None:
        told = self._blind.told_so_far()
        try:
            selection = await self.api.select(force_check=True)  # a cached selection may be old
            totals = await self.api.usage()
            budgets = await self.api.budgets()
        except (QuotaSpentError, ClientFrozenError):
            await self._blind.learn_refusal(of_app=True)
        except ForbiddenError:  # only these credentials; other processes may have better ones
            await self._blind.learn_refusal(of_app=False)
        else:
            await self._blind.learn(Snapshot.of(selection.answer, totals, budgets), told)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
