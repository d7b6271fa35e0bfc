"""`wrap`: meters a client, or all clients that a session will create."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pricekeeper.client.configuration import KeeperSettings
from pricekeeper.client.keeper import AsyncPriceKeeper, Keeper, PriceKeeper
from pricekeeper.client.wrapping.async_streams import wait_for_tasks
from pricekeeper.client.wrapping.hooks import SERVICE, AwaitingHooks, BlockingHooks
from pricekeeper.client.wrapping.metered_call import Options
from pricekeeper.client.wrapping.streams import wait_for_threads
from pricekeeper.errors import InvalidValueError
from pricekeeper.tags import check_tags

T = TypeVar("T")

_shared: Final[dict[tuple[type[Keeper], KeeperSettings], Keeper]] = {}
"""One keeper per kind and settings for all clients of the process."""
_lock = threading.Lock()
_log = logging.getLogger("pricekeeper")


def wrap(
    target: T,
    keeper: PriceKeeper | AsyncPriceKeeper | None = None,
    *,
    fallback: bool | None = None,
    allow_lower_max_output: bool = False,
    min_output_tokens: int = 1,
    hold_secs: int | None = None,
    tags: Mapping[str, str] | None = None,
) -> T:
    """Meter every model call of a client, or of a session's later clients; returns ``target``.

    It takes ``bedrock-runtime`` clients and sessions of boto3, botocore, aiobotocore or aioboto3,
    but leaves a client of our gateway unchanged. Without a ``keeper``, the environment names the
    service. Other arguments are as in `authorize`.
    """
    check_tags(tags or {})
    options = Options(fallback, allow_lower_max_output, min_output_tokens, hold_secs, tags)
    if hasattr(target, "meta") and hasattr(target.meta, "events"):
        _wrap_client(target, keeper, options)
    else:
        _wrap_session(target, keeper, options)
    return target


def _wrap_client(client: Any, keeper: Keeper | None, options: Options) -> None:
    service = client.meta.service_model.service_name
    if service != SERVICE:
        raise InvalidValueError("target", f"is a client for {service}; only {SERVICE} runs models")
    is_async = inspect.iscoroutinefunction(type(client)._make_api_call)  # noqa: SLF001 - what tells them apart
    found = _keeper_of(AsyncPriceKeeper if is_async else PriceKeeper, keeper)
    if _is_of_gateway(client, found):
        _log.info("a client of the gateway is not wrapped: the gateway authorizes its calls")
    elif is_async:
        found.before_close(wait_for_tasks)
        AwaitingHooks(client, found, options).register(client.meta.events)
    else:
        found.before_close(wait_for_threads)
        BlockingHooks(client, found, options).register(client.meta.events)


def _is_of_gateway(client: Any, keeper: Keeper) -> bool:
    """Whether the service's gateway already counts the calls."""
    service = keeper.configuration.url.rstrip("/")
    return str(client.meta.endpoint_url).startswith(f"{service}/")


def _wrap_session(session: Any, keeper: Keeper | None, options: Options) -> None:
    inner = getattr(session, "_session", session)  # boto3's holds botocore's
    if not hasattr(inner, "get_component"):
        raise InvalidValueError("target", "must be a client or a session of boto3 or aiobotocore")

    class Wrapped:
        """The first base of the client's class."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _wrap_client(self, keeper, options)

    def add_base(base_classes: list[type], **_: object) -> None:
        if Wrapped not in base_classes:
            base_classes.insert(0, Wrapped)

    events = inner.get_component("event_emitter")
    events.register(f"creating-client-class.{SERVICE}", add_base, unique_id="pricekeeper-wrap")


def _keeper_of(kind: type[Any], given: Keeper | None) -> Any:
    """The given keeper, or the shared one for the environment."""
    if given is not None:
        return given if isinstance(given, kind) else kind.beside(given)
    key = (kind, KeeperSettings.read({}))
    with _lock:
        if key not in _shared or _shared[key].is_closed:
            _shared[key] = kind()
        return _shared[key]
