"""Make a command of an operation of the table.

Its arguments follow from the operation's path, query and body. The decorated function draws the
answer, and its docstring is the help text.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec
import typer
from rich.console import RenderableType

from pricekeeper.cli.backends import Backend, client_of
from pricekeeper.cli.command import (
    Output,
    Question,
    backend_command,
    declare,
    either_command,
    keyword,
)
from pricekeeper.cli.drawing import plain
from pricekeeper.cli.exits import hint_if_missing
from pricekeeper.cli.options import (
    APP,
    APP_OR_ORG,
    CHANNEL,
    CHANNELS_HINT,
    ORG,
    REASON,
    argument,
    option,
)
from pricekeeper.wire.operation import UNDER_A_POLICY, Operation, Pair

if TYPE_CHECKING:  # a command that only explains itself imports none of this
    from pricekeeper.client.asking import Asking


@dataclass(frozen=True, slots=True)
class Word:
    """How a command states a parameter of an operation, or an option of its own."""

    name: str
    how: Any
    """An `argument` or an `option`."""
    kind: Any = str
    default: Any = None
    send: Callable[[Any], Any] = lambda given: given
    hint: str = ""
    """Where a person finds one, if there is no such."""

    def parameter(self, *, required: bool = False) -> inspect.Parameter:
        if self.default is not None:
            return keyword(self.name, Annotated[self.kind, self.how], self.default)
        if required:
            return keyword(self.name, Annotated[self.kind, self.how])
        return keyword(self.name, Annotated[self.kind | None, self.how], None)


CONTAINMENT: Final = "containment"
"""The tag of operations that a command asks a reason for, also where the API asks for none."""
_GRACE: Final = option("--grace-hours", "How long the old one still works.", min=0, max=168)
_REQUIRED: Final[Mapping[str, Word]] = {
    "org_id": Word("org", ORG),
    "app_id": Word("app", APP),
    "key_id": Word(
        "key_id",
        argument("KEY_ID", "As 'admin-keys list' shows it."),
        hint="'pricekeeper admin-keys list' shows all keys",
    ),
    "authorization_id": Word(
        "authorization_id",
        argument("ID", "The authorization's id."),
        hint="'pricekeeper authorizations list' shows open and unsettled ones",
    ),
    "request_id": Word("request_id", argument("REQUEST_ID", "The id of a usage record.")),
    "channel": Word("name", CHANNEL, hint=CHANNELS_HINT),
    "model_label": Word("label", argument("LABEL", "The model label to use.")),
    "grace_period_hours": Word("grace_hours", _GRACE, int, default=24),
    "reason": Word("reason", REASON),
}
_OPTIONAL: Final[Mapping[str, Word]] = {
    "org_id": Word("org", option("--org ORG", "Of this organisation.")),
    "app_id": Word("app", APP_OR_ORG),
    "reason": Word("reason", REASON),
    "status": Word("status", option("--status", "Only these."), Literal["open", "unsettled"]),
    "kind": Word("kind", option("--kind", "Of this kind.")),
    "state": Word(
        "state", option("--state", "Only pending, delivered, given_up or unsent alerts.")
    ),
    "after": Word("after", option("--after NEXT", "The page after this one.")),
}


class Reply:
    """An answer, and the arguments of the command."""

    def __init__(self, answer: Any, given: Mapping[str, Any]) -> None:
        self.answer = answer
        self.given = given

    def __getitem__(self, field: str) -> Any:
        return self.answer[field]

    @property
    def client(self) -> str:
        """ORG and APP as on the command line."""
        return " ".join(filter(None, (self.given["org"], self.given["app"])))

    @property
    def name(self) -> str:
        """The app, else the organisation."""
        return self.client.rpartition(" ")[2]


_Drawing = TypeVar("_Drawing", bound=Callable[[Reply], RenderableType])


def operation_command(
    group: typer.Typer,
    name: str,
    stated: Operation[Any] | Pair[Any, Any],
    *,
    asks: Question | None = None,
    status: str = "",
    **words: Word,
) -> Callable[[_Drawing], _Drawing]:
    """Register a command that asks for one operation.

    ``status`` is the answer of an operation without one.
    ``words`` have the parameters' names; others are options of the command alone.
    """
    wide, narrow = stated if isinstance(stated, Pair) else (stated, stated)
    fields = msgspec.structs.fields(narrow.body) if narrow.body else ()
    needed = dict.fromkeys(_in_path(narrow), False) | dict.fromkeys(_in_path(wide), True)
    needed |= {one.name: one.required for one in narrow.query}
    needed |= {"reason": True} if narrow.tag == CONTAINMENT else {}
    needed |= {one.name: one.required for one in fields}
    sent = dict[str, Word]()
    for field, required in needed.items():
        if word := words.get(field) or (_REQUIRED if required else _OPTIONAL).get(field):
            sent[field] = word
        elif required:
            raise TypeError(f"{narrow.name}: say how a command states {field}")
    parameters = [word.parameter(required=needed[field]) for field, word in sent.items()]
    parameters.sort(key=lambda one: one.default is not one.empty)
    parameters += [word.parameter() for field, word in words.items() if field not in needed]
    hint = next((word.hint for word in sent.values() if word.hint), "")
    by_client = narrow.access in UNDER_A_POLICY
    register = either_command(group, name) if by_client else backend_command(group, name, asks=asks)

    def decorate(draw: _Drawing) -> _Drawing:
        @functools.wraps(draw)
        async def run(backend: Backend, **given: Any) -> Output:
            asking: Asking = backend.admin
            if by_client:
                client = client_of(given["org"], given.get("app"))
                asking = backend.keeper(client) if narrow.role is None else backend.reader(client)
            values = {field: word.send(given[word.name]) for field, word in sent.items()}
            with hint_if_missing(hint):
                answer = plain(await asking.ask(stated, values))
            if answer is None:
                named = {field: values[field] for field in _in_path(narrow) if values[field]}
                answer = {**named, "status": status}
            return Output(answer, draw(Reply(answer, given)))

        declare(run, [keyword("backend", Backend), *parameters])
        register(run)
        return draw

    return decorate


def _in_path(operation: Operation[Any]) -> list[str]:
    return re.findall(r"{(\w+)}", operation.path)
