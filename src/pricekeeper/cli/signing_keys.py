"""``keys``: the service's own keys, where they are in the data folder and where they are not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pricekeeper.cli.command import Output, store_command
from pricekeeper.cli.drawing import done, to_paste
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.options import option
from pricekeeper.clock import SystemClock
from pricekeeper.settings import SIGNING_KEYS, Settings

if TYPE_CHECKING:  # a command that only explains itself imports none of this
    from pricekeeper.tokens import Keyring

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
    from pricekeeper.credentials import pepperfile  # noqa: PLC0415

    pepper = pepperfile.new_pepper()
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
