"""Read files that declare organisations and their apps.

A file has the fields of ``PUT /orgs/{org}``, ``org_id``, and ``apps`` by id. All mistakes are
listed before any request; the service checks labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pricekeeper.cli.exits import MisusedError
from pricekeeper.errors import FieldError, InvalidConfigError, InvalidValueError
from pricekeeper.values import AppId, ModelLabel, OrgId, parse_app_id, parse_org_id

if TYPE_CHECKING:  # --help needs none of it
    from pricekeeper.tenants import AppSettings, OrgSettings

FILES_MAX: Final = 10_000
FILE_BYTES_MAX: Final = 1024 * 1024
MISTAKES_MAX: Final = 100
YAML: Final = (".yaml", ".yml")
JSON: Final = ".json"

_OWN_FIELDS: Final = ("org_id", "apps")
"""Of a file, not of the organisation."""


class DeclaredClient(NamedTuple):
    """The declared settings of an organisation or app."""

    file: str
    org_id: OrgId
    app_id: AppId | None
    body: Mapping[str, Any]
    fields: Mapping[str, Any]
    """With all defaults; of an app, its own only."""

    @property
    def name(self) -> str:
        shown: str = self.fields["org_name" if self.app_id is None else "app_name"]
        return shown


class DeclaredOrg(NamedTuple):
    """An organisation and its declared apps."""

    client: DeclaredClient
    apps: tuple[DeclaredClient, ...]


class Declarations(NamedTuple):
    """All declared organisations."""

    orgs: tuple[DeclaredOrg, ...]
    are_of_a_folder: bool


def read_declarations(path: str) -> Declarations:
    """Read a file, or all YAML and JSON files below a folder."""
    declared: list[DeclaredOrg] = []
    mistakes: list[str] = []
    seen: dict[OrgId, str] = {}
    for file in _files(Path(path)):
        try:
            found = _org_of(str(file), _load(file))
        except _MistakenFileError as error:
            mistakes += error.mistakes
            continue
        org_id = found.client.org_id
        if org_id in seen:
            mistakes.append(f"{file}: org_id: {seen[org_id]} declares this organisation, too")
        seen.setdefault(org_id, str(file))
        declared.append(found)
    if mistakes:
        more = len(mistakes) - MISTAKES_MAX
        cut = [f"and {more} more"] if more > 0 else []
        raise MisusedError("; ".join([*mistakes[:MISTAKES_MAX], *cut]))
    return Declarations(tuple(declared), Path(path).is_dir())


class _MistakenFileError(Exception):
    """A file that can't be applied, with its mistakes."""

    def __init__(self, file: str, mistakes: Sequence[FieldError]) -> None:
        self.mistakes = [
            ": ".join(filter(None, (file, mistake.field, mistake.message))) for mistake in mistakes
        ]
        super().__init__("; ".join(self.mistakes))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in (*YAML, JSON)
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not found:
        text = f"{path}: has no .yaml, .yml or .json file; name a file, or another folder"
        raise MisusedError(text)
    if len(found) > FILES_MAX:
        text = f"{path}: has {len(found)} files, at most {FILES_MAX} are read; name a subfolder"
        raise MisusedError(text)
    return found


def _load(file: Path) -> Any:
    from pricekeeper.pricing.strict_yaml import InvalidYamlError, load_strict_yaml  # noqa: PLC0415

    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise InvalidYamlError(f"longer than {FILE_BYTES_MAX} bytes")
        text = data.decode("utf-8")
        return _load_json(text) if file.suffix == JSON else load_strict_yaml(text)
    except OSError as error:
        raise _mistake(file, "", error.strerror or "can't be read") from error
    except UnicodeDecodeError as error:
        raise _mistake(file, "", "is not UTF-8 text") from error
    except InvalidYamlError as error:
        raise _mistake(file, "", str(error)) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _mistake(file, "", f"is not JSON: {where}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _mistake(file, "", f"is not JSON: {error}") from error


def _load_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key {twice!r} is there twice")
        return made

    plain = json.loads(text, object_pairs_hook=unique)
    json.dumps(plain, ensure_ascii=False).encode()  # fails on lone surrogates
    return plain


def _mistake(file: Path | str, field: str, message: str) -> _MistakenFileError:
    return _MistakenFileError(str(file), [FieldError(field, message)])


def _org_of(file: str, document: Any) -> DeclaredOrg:
    """An organisation, or all of its mistakes raised."""
    from pricekeeper.tenants.parsing import parse_org_settings  # noqa: PLC0415
    from pricekeeper.tenants.stored_settings import stated_body  # noqa: PLC0415

    if not isinstance(document, dict):
        raise _mistake(file, "", "write the fields of an organisation, name: value")
    mistakes: list[FieldError] = []
    org_id = _org_id(document.get("org_id"), mistakes)
    body = {name: value for name, value in document.items() if name not in _OWN_FIELDS}
    listed = _mapping(document.get("apps"), "apps", mistakes)
    labels = frozenset(_labels_in(body)).union(*map(_labels_in, listed.values()))
    settings = None
    try:
        settings = parse_org_settings(body, labels)
    except InvalidConfigError as error:
        mistakes += error.errors
    apps = []
    for name, app_body in listed.items():
        app = _app_of(file, org_id, name, app_body, settings or _any_org(body, labels), mistakes)
        if app is not None:
            apps.append(app)
    if mistakes or settings is None or org_id is None:
        raise _MistakenFileError(file, mistakes)
    client = DeclaredClient(file, org_id, None, body, stated_body(settings))
    return DeclaredOrg(client, tuple(apps))


def _app_of(
    file: str,
    org_id: OrgId | None,
    name: str,
    body: Any,
    org: OrgSettings,
    mistakes: list[FieldError],
) -> DeclaredClient | None:
    """An app; on mistakes, note them and return ``None``."""
    from pricekeeper.tenants.parsing import parse_app_settings  # noqa: PLC0415
    from pricekeeper.tenants.stored_settings import stated_body  # noqa: PLC0415

    path = f"apps.{name}"
    wrong = len(mistakes)
    app_id = AppId(name)
    try:
        app_id = parse_app_id(name)
    except InvalidValueError as error:
        mistakes.append(FieldError(path, error.message))
    fields = _mapping(body, path, mistakes)
    if not isinstance(body, dict):
        return None
    if org.quota_scope == "ORG" and fields.get("quotas") is not None:
        message = "have no effect where quota_scope is ORG; remove them, or set the scope to APP"
        mistakes.append(FieldError(f"{path}.quotas", message))
    settings: AppSettings | None = None
    try:
        settings = parse_app_settings(fields, frozenset(_labels_in(fields)), org)
    except InvalidConfigError as error:
        mistakes += [FieldError(f"{path}.{one.field}", one.message) for one in error.errors]
    if settings is None or org_id is None or len(mistakes) > wrong:
        return None
    stated = stated_body(settings)
    return DeclaredClient(file, org_id, app_id, fields, stated)


def _org_id(value: Any, mistakes: list[FieldError]) -> OrgId | None:
    try:
        return parse_org_id(value if isinstance(value, str) else "")
    except InvalidValueError as error:
        message = "is missing; give the organisation's UUID" if value is None else error.message
        mistakes.append(FieldError("org_id", message))
        return None


def _mapping(value: Any, path: str, mistakes: list[FieldError]) -> dict[str, Any]:
    if value is None and path == "apps":
        return {}
    if not isinstance(value, dict):
        mistakes.append(FieldError(path, "must be a mapping of names to values"))
        return {}
    return value


def _labels_in(body: Any) -> Iterator[str]:
    """Texts that may be labels, by their place and form."""
    from pricekeeper.wire.settings import LABEL  # noqa: PLC0415

    if not isinstance(body, dict):
        return
    budgets = body.get("budgets")
    named: list[Any] = [body.get(field) for field in ("model_ordering", "quotas", "rate_limits")]
    named += [
        budget.get("labels")
        for budget in (budgets if isinstance(budgets, list) else ())
        if isinstance(budget, dict)
    ]
    for labels in named:
        for label in labels if isinstance(labels, (list, dict)) else ():
            if isinstance(label, str) and re.fullmatch(LABEL, label):
                yield label


def _any_org(body: Mapping[str, Any], labels: Collection[str]) -> OrgSettings:
    """An organisation that fits all apps, to check them if theirs is wrong."""
    from pricekeeper.tenants import OrgSettings, QuotaScope  # noqa: PLC0415

    tag_keys = body.get("tag_keys")
    return OrgSettings(
        org_name="",
        timezone="UTC",
        quota_scope=QuotaScope.APP,
        model_ordering=(),
        quotas={ModelLabel(label): 0 for label in labels},
        sticky_fallback_enabled=True,
        agg_shard_count=8,
        tight_mode_threshold_pct=95,
        refresh_interval_normal_secs=300,
        refresh_interval_tight_secs=60,
        session_limit=5,
        rate_limits={},
        tag_keys=tuple(tag_keys) if isinstance(tag_keys, list) else (),
    )
