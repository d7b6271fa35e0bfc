"""Every message that a person meets says what to do next."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pricekeeper.http.app  # noqa: F401 - it defines the errors of the HTTP layer
from pricekeeper import cli
from pricekeeper.cli.exits import fix_of
from pricekeeper.errors import PriceKeeperError, PricingError, StoreError
from pricekeeper.http.problems import problem_of, status_of

NEXT = re.compile(
    r"\b(add|ask|check|choose|correct|create|export|free|give|leave|let|log|look|make|name|omit|put"
    r"|raise|repeat|report|restart|restore|run|send|set|split|start|try|type|use|wait|write)\b"
    r"|'?pricekeeper [a-z]|--\w+"
)
"""A verb that asks for something, a command or an option."""
ROOMS = ("pricekeeper.errors", "pricekeeper.http.", "pricekeeper.usecases.")
"""Errors of the client have the code that the service answered."""
ROOTS = (PricingError, StoreError)
SAYS_NOTHING_ELSE = (404, 500, 503)
"""Answers whose words are the service's own; the others name the fields that are wrong."""


def leaves(above: type[PriceKeeperError] = PriceKeeperError) -> Iterator[type[PriceKeeperError]]:
    """Walk every error of ours that can be raised."""
    for kind in above.__subclasses__():
        if kind.__module__.startswith(ROOMS):
            if kind not in ROOTS:
                yield kind
            yield from leaves(kind)


LEAVES = sorted(set(leaves()), key=lambda kind: f"{kind.__module__}.{kind.__name__}")
each = pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)


class AnsweredError(PriceKeeperError):
    """An error that a service answered, by its code on the wire."""

    def __init__(self, code: str) -> None:
        super().__init__("")
        self.code = code  # type: ignore[misc]


@each
def test_a_command_says_what_to_do_next(kind: type[PriceKeeperError]) -> None:
    """After an error that was raised here, and after one that a service answered."""
    raised = kind.__new__(kind)
    wire_code = status_of(kind)[1] or kind.code
    assert NEXT.search(fix_of(raised)), kind.code
    assert NEXT.search(fix_of(AnsweredError(wire_code))), wire_code


@each
def test_an_answer_says_what_to_do_next(kind: type[PriceKeeperError]) -> None:
    """Where its words are the service's own, and not those of a mistake in the request."""
    if status_of(kind)[0] in SAYS_NOTHING_ELSE:
        error = kind.__new__(kind)
        error.__dict__.setdefault("may_be_applied", False)
        assert NEXT.search(problem_of(error, 0).detail)


def misuses() -> Iterator[tuple[str, str]]:
    """Find the messages about a wrong command line, each with its place."""
    for path in sorted(Path(cli.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
        for call in calls:
            if ast.unparse(call.func).endswith(("MisusedError", "RefusedError")):
                yield f"{path.name}:{call.lineno}", words_of(call.args[0])


def words_of(node: ast.expr) -> str:
    """Join the constant parts of a string."""
    return " ".join(
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )


WITH_WORDS = [(place, said) for place, said in misuses() if said.strip("; ")]


@pytest.mark.parametrize(("place", "said"), WITH_WORDS, ids=[place for place, _ in WITH_WORDS])
def test_a_wrong_command_line_is_told_the_right_one(place: str, said: str) -> None:
    """The message has the option, the command or the verb that helps."""
    assert NEXT.search(said), (place, said)


def test_messages_are_found() -> None:
    """The search finds what it is meant to find."""
    assert len(LEAVES) > 30
    assert len(WITH_WORDS) > 20
