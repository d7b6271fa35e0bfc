"""``admin-keys`` and ``whoami``: who may administer, what, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, backend_command, store_command
from pricekeeper.cli.drawing import Facts, Section, done, minute, moment, plain, table, to_paste
from pricekeeper.cli.exits import MisusedError, hint_if_missing
from pricekeeper.cli.options import argument, option
from pricekeeper.clock import SystemClock
from pricekeeper.settings import ADMIN_KEY, SIGNING_KEYS, Settings

if TYPE_CHECKING:
    from pricekeeper.tokens import Keyring


admin_keys = typer.Typer(no_args_is_help=True, help="Named keys of administrators, with roles.")

_WHICH: Final = "'pricekeeper admin-keys list' shows the keys that there are"
KeyId = Annotated[str, argument("KEY_ID", "As 'admin-keys list' shows it.")]


@backend_command(admin_keys, "create", may_create=True)
async def create(
    backend: Backend,
    name: Annotated[str, argument("NAME", "Whose key it is: for people.")],
    *,
    role: Annotated[
        Literal["VIEWER", "OPERATOR", "ADMIN"],
        option(
            "--role",
            "VIEWER reads; OPERATOR also contains, overrides and rotates; ADMIN does all.",
            case_sensitive=False,
        ),
    ],
    org: Annotated[
        list[str] | None, option("--org ORG", "It covers this one; repeatable. Else all.")
    ] = None,
    days: Annotated[
        int | None, option("--days", "It counts for so many days.", min=1, max=3650)
    ] = None,
    expires_at: Annotated[
        str | None, option("--expires-at TIME", "Until then: 2027-01-31T00:00:00Z.")
    ] = None,
) -> Output:
    """Make a key: this is the only time that anybody sees it.

    On the store this needs no key, so it is also how the first one is made, and how one gets in
    again.

    [dim]pricekeeper admin-keys create platform --role ADMIN --json > key.json[/dim]

    [dim]pricekeeper admin-keys create "night shift" --role OPERATOR --org $ORG --days 90[/dim]
    """
    if days is not None and expires_at is not None:
        raise MisusedError("say --days or --expires-at, not both")
    if days is not None:
        expires_at = (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = plain(
        await backend.admin.create_admin_key(name, role=role, org_ids=org, expires_at=expires_at)
    )
    return Output(answer, _issued(answer))


@backend_command(admin_keys, "list")
async def list_keys(backend: Backend) -> Output:
    """Every key, the oldest first: who has it, what it may do, and when it was last used.

    [dim]pricekeeper admin-keys list[/dim]
    """
    found = plain(await backend.admin.list_admin_keys())
    rows = table("key id", "name", "role", "covers", "expires (UTC)", "last used", "by")
    for key in found:
        rows.add_row(
            key["key_id"],
            key["name"],
            key["role"],
            _covers(key),
            minute(key["expires_at"]) if "expires_at" in key else "never",
            minute(key["last_used_at"]) if "last_used_at" in key else "never",
            key["created_by"],
        )
    empty = Text("no admin keys; see 'pricekeeper admin-keys create --help'")
    return Output(found, rows if found else empty)


@backend_command(admin_keys, "rotate")
async def rotate(
    backend: Backend,
    key_id: KeyId,
    *,
    grace_hours: Annotated[
        int, option("--grace-hours", "How long the old text lives on.", min=0, max=168)
    ] = 24,
) -> Output:
    """Replace the text of a key; the one in use works for the grace. Name and role stay.

    [dim]pricekeeper admin-keys rotate 0RkYpZs9QbTd --grace-hours 48 --json > key.json[/dim]
    """
    with hint_if_missing(_WHICH):
        answer = plain(await backend.admin.rotate_admin_key(key_id, grace_period_hours=grace_hours))
    return Output(answer, _issued(answer))


@backend_command(admin_keys, "delete", asks=lambda given: f"End the key {given['key_id']}?")
async def delete(backend: Backend, key_id: KeyId) -> Output:
    """End a key: at once on the service that is asked, within 30 seconds on every other.

    [dim]pricekeeper admin-keys delete 0RkYpZs9QbTd --yes[/dim]
    """
    with hint_if_missing(_WHICH):
        await backend.admin.delete_admin_key(key_id)
    answer = {"key_id": key_id, "status": "deleted"}
    return Output(answer, done(f"{key_id} opens nothing any more"))


@backend_command(admin_keys, "whoami")
async def whoami(backend: Backend) -> Output:
    """Say which key this is, and what it may see.

    [dim]pricekeeper admin-keys whoami --url https://keeper.example.com[/dim]
    """
    answer = plain(await backend.admin.me())
    shown = {name: str(value) for name, value in answer.items() if name != "org_ids"}
    return Output(answer, Facts({**shown, "covers": _covers(answer)}))


def _issued(answer: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [
        Facts({"key id": answer["key_id"], "role": answer["role"], "covers": _covers(answer)}),
        Text("shown now and never again:", "dim"),
        to_paste(f"export {ADMIN_KEY}={answer['key']}"),
    ]
    if until := answer.get("expires_at"):
        parts.append(Text(f"it works until {moment(until)}", "dim"))
    if until := answer.get("old_key_expires_at"):
        parts.append(Text(f"the text before it works until {moment(until)}", "dim"))
    return Section(Text(answer["name"], "bold"), *parts)


def _covers(key: Mapping[str, Any]) -> str:
    return ", ".join(key["org_ids"]) if "org_ids" in key else "all organisations"


keys = typer.Typer(no_args_is_help=True, help="The keys that sign tokens, and the pepper.")

DropOld = Annotated[
    bool, option("--drop-old", "Somebody has seen them: end every token and session.")
]


@store_command(keys, "rotate")
async def rotate_keys(
    settings: Settings,
    *,
    drop_old: DropOld = False,
    to_stdout: Annotated[
        bool, option("--print", "Print the new keyring, for wherever it is kept.")
    ] = False,
) -> Output:
    """Add a signing key, published five minutes before it signs; no restart, nobody logs in again.

    Keys that are not in the data folder are printed with --print, and nothing is changed: put
    them where they are kept.

    [dim]pricekeeper keys rotate[/dim]
    """
    if settings.signing_keys is None and not to_stdout:
        return _rotate_file(settings, drop_old=drop_old)
    if not to_stdout:
        raise MisusedError(
            f"{SIGNING_KEYS} says {settings.signing_keys}, which is not ours to write: "
            "say --print, and put what it prints there"
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
    """Print signing keys that nobody has seen before, for wherever they are to be kept.

    [dim]pricekeeper keys new | aws secretsmanager create-secret --name pricekeeper/signing-keys
    --secret-string file:///dev/stdin[/dim]
    """
    from pricekeeper.tokens import new_keyring  # noqa: PLC0415

    return _printed(new_keyring(SystemClock().now_ms() // 1000))


@store_command(keys, "new-pepper")
async def new_pepper(_: Settings) -> Output:
    """Print a pepper that nobody has seen before, for wherever it is to be kept.

    [dim]pricekeeper keys new-pepper | aws secretsmanager create-secret --name pricekeeper/pepper
    --secret-string file:///dev/stdin[/dim]
    """
    from pricekeeper.credentials import peppers  # noqa: PLC0415

    pepper = peppers.new_pepper()
    return Output({"pepper": pepper}, to_paste(pepper))


def _printed(keyring: Keyring) -> Output:
    """The keyring itself, as JSON either way: for a pipe, and not for the eye."""
    import msgspec  # noqa: PLC0415

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
    from_when = datetime.fromtimestamp(newest.active_from_epoch, UTC)
    answer = {
        "file": str(path),
        "kid": newest.kid,
        "signs_from": from_when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "keys": len(keyring.entries),
        "dropped_old": drop_old,
    }
    text = f"{newest.kid} signs from {from_when:%Y-%m-%d %H:%M:%S} UTC"
    return Output(answer, done(text, f"{len(keyring.entries)} keys in {path}; back it up"))
