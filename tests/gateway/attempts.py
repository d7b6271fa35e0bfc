"""The real client of AWS's, as it comes, and how many attempts it makes."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import botocore.session
from botocore.config import Config

from gateway.world import App, World


@contextmanager
def signing_time(world: World) -> Iterator[None]:
    """Have botocore sign with the time that the service has, which may be ahead of ours."""

    def now() -> datetime:
        return datetime.fromtimestamp(world.clock.now_ms() // 1000, UTC)

    with patch("botocore.auth.get_current_datetime", now):
        yield


@contextmanager
def bedrock_client(world: World, app: App, **config: Any) -> Iterator[Any]:
    """A client of botocore's whose every attempt is counted in ``client.attempts``."""
    with client_with(world, app.aws_credentials(), **config) as client:
        yield client


@contextmanager
def client_with(world: World, keys: dict[str, str], **config: Any) -> Iterator[Any]:
    """The same, with credentials that were fetched before."""
    client: Any = botocore.session.get_session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=f"{world.url}/bedrock",
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["Token"],
        config=Config(**config),
    )
    client.attempts = 0

    def count(**_: Any) -> None:
        client.attempts += 1

    client.meta.events.register("before-send.bedrock-runtime", count)
    try:
        with signing_time(world):
            yield client
    finally:
        client.close()
