"""``pricekeeper spool``: show or send waiting reports, with the client library alone."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pricekeeper.client.configuration import KeeperSettings
from pricekeeper.client.keeper import PriceKeeper
from pricekeeper.client.spool import SpoolEntry, find_folder, read_folder, read_refused
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import InvalidValueError, PriceKeeperError, SettingsError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED_SHOWN: Final = 20
HEARD_SHOWN: Final = 5
_PAUSE_SECS: Final = 0.02
_NOUNS: Final = {"capture": "capture", "usage": "usage record", "void": "void"}
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

Answer = dict[str, Any]


def look(configuration: KeeperSettings, clock: Clock) -> Answer:
    """Show the waiting entries and those refused for good."""
    folder = _folder(configuration)
    files: list[Answer] = []
    for path, held, entries in () if folder is None else read_folder(folder):
        waiting = _by_kind(entries, clock.now_ms())
        files.append({"name": path.name, "in_use": held, "waiting": waiting})
    return {
        "client_id": configuration.client.client_id,
        "folder": None if folder is None else str(folder),
        "waiting": sum(kind["entries"] for file in files for kind in file["waiting"].values()),
        "files": files,
        "refused": [] if folder is None else read_refused(folder),
    }


def tell_now(configuration: KeeperSettings, clock: Clock) -> Answer:
    """Report the entries of ended processes, while each deadline brings progress."""
    folder = _folder(configuration)
    answer: Answer = {
        "client_id": configuration.client.client_id,
        "folder": None if folder is None else str(folder),
        **dict.fromkeys(("told", "refused", "left", "in_use"), 0),
        "heard": [],
    }
    if folder is None:
        return answer
    wanted = {one.id for _, held, entries in read_folder(folder) if not held for one in entries}
    refused_before = len(read_refused(folder))
    with _heard() as heard, _keeper(configuration) as keeper:
        _flush(keeper, folder, wanted, clock)
    after = [(held, one.id) for _, held, entries in read_folder(folder) for one in entries]
    refused = {one.get("id") for one in read_refused(folder)[refused_before:]} & wanted
    answer["told"] = len(wanted - {one for _, one in after} - refused)
    answer["refused"] = len(refused)
    answer["left"] = sum(not held for held, _ in after)
    answer["in_use"] = sum(held for held, _ in after)
    answer["heard"] = heard[-HEARD_SHOWN:]
    return answer


def _flush(keeper: PriceKeeper, folder: Path, wanted: set[str], clock: Clock) -> None:
    """Report until no entry waits, or a deadline brings no progress."""
    patience_ms = keeper.configuration.deadline_ms
    until_ms, before = clock.monotonic_ms() + patience_ms, len(wanted)
    while before:
        keeper.engine.spool.adopt()
        keeper.flush()
        now = sum(one.id in wanted for _, _, entries in read_folder(folder) for one in entries)
        if now < before:
            until_ms = clock.monotonic_ms() + patience_ms
        elif clock.monotonic_ms() >= until_ms:
            return
        else:  # the keeper's thread is about to take the files over
            time.sleep(_PAUSE_SECS)
        before = now


def _folder(configuration: KeeperSettings) -> Path | None:
    given = configuration
    return find_folder(given.spool_dir, given.url, given.client.client_id)


def _keeper(configuration: KeeperSettings) -> PriceKeeper:
    given = configuration
    return PriceKeeper(
        given.url,
        given.client_id,
        given.client_secret,
        app_id=given.app_id,
        deadline_ms=given.deadline_ms,
        on_unavailable="deny",
        spool_dir=given.spool_dir,
    )


@contextmanager
def _heard() -> Iterator[list[str]]:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logger, listener = logging.getLogger("pricekeeper"), Listener(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagated


def _by_kind(entries: Sequence[SpoolEntry], now_ms: int) -> dict[str, dict[str, int]]:
    """Count of each kind, with the oldest and newest age."""
    found: dict[str, dict[str, int]] = {}
    for kind in _NOUNS:
        secs = [max(0, now_ms - one.at_ms) // 1_000 for one in entries if one.kind == kind]
        if secs:
            ages = {"oldest_secs": max(secs), "newest_secs": min(secs)}
            found[kind] = {"entries": len(secs), **ages}
    return found


def picture_of_look(answer: Answer) -> list[str]:
    """Draw the answer of `look`."""
    if answer["folder"] is None:
        return [f"{answer['client_id']}: reports are kept in memory only, so there are no files"]
    lines = [f"{answer['client_id']}: {answer['waiting']} waiting in {answer['folder']}"]
    for file in answer["files"]:
        owner = "a running process" if file["in_use"] else "a process that has ended"
        lines.append(f"  {file['name']}, of {owner}")
        lines += [f"    {_waiting(kind, about)}" for kind, about in file["waiting"].items()]
        if not file["waiting"]:
            lines.append("    nothing")
    refused = answer["refused"]
    if refused:
        lines.append(f"refused for good: {len(refused)}")
        lines += [
            f"  {one.get('kind')} {one.get('id')}: {one.get('reason')}"
            for one in refused[-REFUSED_SHOWN:]
        ]
        if len(refused) > REFUSED_SHOWN:
            lines.append(f"  and {len(refused) - REFUSED_SHOWN} earlier ones: --json lists all")
    return lines


def picture_of_telling(answer: Answer) -> list[str]:
    """Draw the answer of `tell_now`."""
    if answer["folder"] is None:
        return picture_of_look(answer)
    counts = (
        f"{answer['told']} reported, {answer['refused']} refused for good, {answer['left']} left"
    )
    lines = [f"{answer['client_id']}: {counts} in {answer['folder']}"]
    if answer["in_use"]:
        lines.append(f"  {answer['in_use']} more wait in running processes, which report them")
    return [*lines, *(f"  {text}" for text in answer["heard"])]


def code_of_telling(answer: Answer) -> int:
    """Success if no entry is left."""
    return FAILED if answer["left"] else OK


def _waiting(kind: str, about: Mapping[str, int]) -> str:
    count, oldest, newest = about["entries"], about["oldest_secs"], about["newest_secs"]
    noun = f"{count:,} {_NOUNS[kind]}{'' if count == 1 else 's'}"
    if _age(oldest) == _age(newest):
        return f"{noun}, for {_age(oldest)}"
    return f"{noun}, for {_age(newest)} to {_age(oldest)}"


def _age(secs: int) -> str:
    size, unit = next((one for one in _UNITS if secs >= one[0]), _UNITS[-1])
    return f"{secs // size} {unit}"


def main(argv: list[str]) -> int:
    """Run ``show`` or ``flush``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="pricekeeper spool",
        description="Reports of usage that the service has not confirmed yet. Reads the app's "
        "credentials from the environment.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("show", "Show waiting reports."), ("flush", "Send waiting reports now.")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--json", action="store_true", help="Print the answer as JSON.")
    given = parser.parse_args(argv)
    try:
        configuration, clock = KeeperSettings.read({}), SystemClock()
        if given.command == "show":
            answer, code = look(configuration, clock), OK
            lines = picture_of_look(answer)
        else:
            answer = tell_now(configuration, clock)
            lines, code = picture_of_telling(answer), code_of_telling(answer)
    except PriceKeeperError as error:
        _print(sys.stderr, [f"{error.code} {error}"])
        return USAGE if isinstance(error, SettingsError | InvalidValueError) else FAILED
    _print(sys.stdout, [json.dumps(answer, indent=2)] if given.json else lines)
    return code


def _print(stream: Any, lines: Iterable[str]) -> None:
    """Print lines with control characters escaped: some text comes from outside."""
    for text in lines:
        shown = "".join(
            one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text
        )
        stream.write(f"{shown}\n")
