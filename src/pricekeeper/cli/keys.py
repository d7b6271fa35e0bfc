"""``admin-keys``, ``whoami`` and ``keys``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, backend_command, store_command
from pricekeeper.cli.drawing import Facts, Section, done, moment, plain, shown_once, to_paste
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.operation_command import Reply, operation_command
from pricekeeper.cli.options import argument, option
from pricekeeper.cli.tables import Column, listing, minutes
from pricekeeper.clock import SystemClock
from pricekeeper.settings import ADMIN_KEY, SIGNING_KEYS, Settings
from pricekeeper.showing import rfc3339
from pricekeeper.wire import operations as ops

if TYPE_CHECKING:
    from pricekeeper.tokens import Keyring


admin_keys = typer.Typer(no_args_is_help=True, help="Named keys of administrators, with roles.")


@backend_command(admin_keys, "create", may_create=True)
async def create(
    backend: Backend,
    name: Annotated[str, argument("NAME", "A name for people.")],
    *,
    role: Annotated[
        Literal["VIEWER", "OPERATOR", "ADMIN"],
        option(
            "--role",
            "VIEWER reads; OPERATOR also freezes, overrides and rotates; ADMIN does all.",
            case_sensitive=False,
        ),
    ],
    org: Annotated[
        list[str] | None, option("--org ORG", "Only this organisation; repeatable. Default: all.")
    ] = None,
    days: Annotated[
        int | None, option("--days", "It expires after so many days.", min=1, max=3650)
    ] = None,
    expires_at: Annotated[
        str | None, option("--expires-at TIME", "It expires at 2027-01-31T00:00:00Z.")
    ] = None,
) -> Output:
    """Make a key, which is shown only once.

    On the store this needs no key. So it makes the first key, and a new one if all are lost.

    [dim]pricekeeper admin-keys create platform --role ADMIN --json > key.json[/dim]

    [dim]pricekeeper admin-keys create "night shift" --role OPERATOR --org $ORG --days 90[/dim]
    """
    if days is not None and expires_at is not None:
        raise MisusedError("give --days or --expires-at, not both")
    if days is not None:
        expires_at = (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = plain(
        await backend.admin.create_admin_key(name, role=role, org_ids=org, expires_at=expires_at)
    )
    return Output(answer, _issued(answer))


@backend_command(admin_keys, "list")
async def list_keys(backend: Backend) -> Output:
    """List all keys, oldest first.

    [dim]pricekeeper admin-keys list[/dim]
    """
    found = plain(await backend.admin.list_admin_keys())
    rows = listing(
        found,
        *(Column("key id", "key_id"), Column("name", "name"), Column("role", "role")),
        Column("covers", _covers),
        minutes("expires", "expires_at"),
        minutes("last used", "last_used_at"),
        Column("by", "created_by"),
    )
    empty = Text("no admin keys; 'pricekeeper admin-keys create' makes one")
    return Output(found, rows if found else empty)


@operation_command(admin_keys, "rotate", ops.ROTATE_ADMIN_KEY)
def rotate(reply: Reply) -> RenderableType:
    """Replace the secret text of a key. The old text works during the grace.

    [dim]pricekeeper admin-keys rotate 0RkYpZs9QbTd --grace-hours 48 --json > key.json[/dim]
    """
    return _issued(reply.answer)


_DELETING: Final = "Delete the key {key_id}?"


@operation_command(
    admin_keys, "delete", ops.DELETE_ADMIN_KEY, asks=_DELETING.format_map, status="deleted"
)
def delete(reply: Reply) -> RenderableType:
    """Delete a key. It stops working at once on this service, within 30 seconds on others.

    [dim]pricekeeper admin-keys delete 0RkYpZs9QbTd --yes[/dim]
    """
    return done(f"{reply['key_id']} is deleted")


@operation_command(admin_keys, "whoami", ops.GET_ME)
def whoami(reply: Reply) -> RenderableType:
    """Show the key in use, its role and its organisations.

    [dim]pricekeeper admin-keys whoami --url https://keeper.example.com[/dim]
    """
    shown = {name: str(value) for name, value in reply.answer.items() if name != "org_ids"}
    return Facts({**shown, "covers": _covers(reply.answer)})


def _issued(answer: Mapping[str, Any]) -> RenderableType:
    about = {"key id": answer["key_id"], "role": answer["role"], "covers": _covers(answer)}
    parts = shown_once(
        {ADMIN_KEY: answer["key"]},
        ("it works", answer.get("expires_at")),
        ("the old key works", answer.get("old_key_expires_at")),
    )
    return Section(Text(answer["name"], "bold"), Facts(about), *parts)


def _covers(key: Mapping[str, Any]) -> str:
    return ", ".join(key["org_ids"]) if "org_ids" in key else "all organisations"


keys = typer.Typer(no_args_is_help=True, help="Signing keys and the pepper.")


@store_command(keys, "rotate")
async def rotate_keys(
    settings: Settings,
    *,
    drop_old: Annotated[
        bool, option("--drop-old", "Old keys are compromised: end all tokens and sessions.")
    ] = False,
    to_stdout: Annotated[bool, option("--print", "Print the new keyring; change nothing.")] = False,
) -> Output:
    """Add a signing key, which signs after five minutes. It needs no restart and ends no session.

    If the keys are not in the data folder, use --print and store the new keyring yourself.

    [dim]pricekeeper keys rotate[/dim]
    """
    if settings.signing_keys is None and not to_stdout:
        return _rotate_file(settings, drop_old=drop_old)
    if not to_stdout:
        raise MisusedError(
            f"{SIGNING_KEYS} names {settings.signing_keys}, which this command does not write: "
            "add --print, and store the printed keyring there"
        )
    from pricekeeper.bootstrap.secrets import open_keys  # noqa: PLC0415
    from pricekeeper.tokens import PUBLISH_AHEAD_SECS, new_keyring  # noqa: PLC0415

    clock = SystemClock()
    now_epoch = clock.now_ms() // 1000
    if drop_old:
        return _printed(new_keyring(now_epoch))
    present, _ = await open_keys(settings, clock)
    return _printed(present.keyring.rotated(now_epoch, PUBLISH_AHEAD_SECS))


@store_command(keys, "new")
async def new_keys(_: Settings) -> Output:
    """Print new signing keys, to be stored outside the data folder.

    [dim]pricekeeper keys new | aws secretsmanager create-secret --name pricekeeper/signing-keys
    --secret-string file:///dev/stdin[/dim]
    """
    from pricekeeper.tokens import new_keyring  # noqa: PLC0415

    return _printed(new_keyring(SystemClock().now_ms() // 1000))


@store_command(keys, "new-pepper")
async def new_pepper(_: Settings) -> Output:
    """Print a new pepper, to be stored outside the data folder.

    [dim]pricekeeper keys new-pepper | aws secretsmanager create-secret --name pricekeeper/pepper
    --secret-string file:///dev/stdin[/dim]
    """
    from pricekeeper.credentials import peppers  # noqa: PLC0415

    pepper = peppers.new_pepper()
    return Output({"pepper": pepper}, to_paste(pepper))


def _printed(keyring: Keyring) -> Output:
    from pricekeeper.tokens import dump_keyring  # noqa: PLC0415

    text = dump_keyring(keyring)
    answer: Any = msgspec.json.decode(text)
    return Output(answer, to_paste(text.decode().rstrip()))


def _rotate_file(settings: Settings, *, drop_old: bool) -> Output:
    from pricekeeper.bootstrap.secrets import KEY_FILE  # noqa: PLC0415
    from pricekeeper.tokens import KeyFile  # noqa: PLC0415

    path = settings.data_dir / KEY_FILE
    keyring = KeyFile(path).rotate(SystemClock().now_ms() // 1000, drop_old=drop_old)
    newest = keyring.entries[-1]
    signs_from = rfc3339(newest.active_from_epoch * 1000)
    answer = {
        "file": str(path),
        "kid": newest.kid,
        "signs_from": signs_from,
        "keys": len(keyring.entries),
        "dropped_old": drop_old,
    }
    text = f"{newest.kid} signs from {moment(signs_from)} on"
    return Output(answer, done(text, f"{len(keyring.entries)} keys in {path}; back it up"))
