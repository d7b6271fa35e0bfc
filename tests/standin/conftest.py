"""A stand-in for Bedrock, and the real client of AWS's."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from pricekeeper.standin import Running, running

MakeClient = Callable[..., Any]


@pytest.fixture(scope="module")
def module_standin() -> Iterator[Running]:
    with running() as standin:
        yield standin


@pytest.fixture
def standin(module_standin: Running) -> Running:
    """A stand-in with an empty ledger."""
    module_standin.ledger.clear()
    return module_standin


@pytest.fixture(scope="module")
def make_client(module_standin: Running) -> Iterator[MakeClient]:
    """Makes clients of botocore's for the stand-in, one of a kind: it takes botocore long."""
    with ExitStack() as opened:

        @cache
        def make(attempts: int = 1, read_timeout: float = 20) -> Any:
            client = botocore.session.get_session().create_client(
                "bedrock-runtime",
                region_name="us-east-1",
                endpoint_url=module_standin.url,
                aws_access_key_id="AKIDEXAMPLE",
                aws_secret_access_key="example",
                config=Config(read_timeout=read_timeout, retries={"total_max_attempts": attempts}),
            )
            return opened.enter_context(closing(client))

        yield make


@pytest.fixture
def bedrock(standin: Running, make_client: MakeClient) -> Any:
    """A client that tries once, as patient as any."""
    return make_client()
