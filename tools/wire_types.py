"""The types of the API's answers for the dashboard, generated from what the service serves.

``dashboard/src/api/wire.ts`` is written by this alone, so that the page can't expect a field
that the service does not send. ``--check`` only says whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pricekeeper.http.openapi import openapi
from pricekeeper.http.routes import ROUTES

TARGET: Final = Path(__file__).resolve().parent.parent / "dashboard" / "src" / "api" / "wire.ts"
ROOTS: Final = (
    "AggregateAnswer",
    "AlertList",
    "AllBudgets",
    "AppAnswer",
    "AppList",
    "AuditList",
    "AuthorizationAnswer",
    "AuthorizationList",
    "AwsCredentialsAnswer",
    "DenialList",
    "FlipList",
    "ForecastList",
    "LimitList",
    "Me",
    "OrgAnswer",
    "OrgList",
    "OverrideAnswer",
    "ProblemBody",
    "SessionList",
    "SpendAnswer",
    "UsageList",
)
"""What the page reads; the types that these are made of come with them."""

_HEAD: Final = """\
// Written by tools/wire_types.py from the service's own description: `make page-types`.
import type { Int } from "./json";
"""
_PLAIN: Final = {"string": "string", "boolean": "boolean", "number": "number", "null": "null"}
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_REFERENCE: Final = "#/components/schemas/"


def typescript(document: Mapping[str, Any], roots: Sequence[str]) -> str:
    """The module: every type that the roots are made of, in alphabetical order."""
    schemas = document["components"]["schemas"]
    wanted, found = list(roots), dict[str, str]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _declaration(name, schemas[name])
            wanted += re.findall(rf'"{_REFERENCE}(\w+)"', json.dumps(schemas[name]))
    return "\n".join((_HEAD, *(found[name] for name in sorted(found))))


def _declaration(name: str, schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    lines = [f"/** {schema['description']} */"] if "description" in schema else []
    lines.append(f"export interface {name} {{")
    for field, one in schema.get("properties", {}).items():
        shown = field if _NAME.fullmatch(field) else json.dumps(field)
        mark = "" if field in required else "?"
        lines.append(f"  {shown}{mark}: {_type(one)};")
    return "\n".join([*lines, "}", ""])


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(json.dumps(value) for value in values)
    kind = schema.get("type")
    if kind == "integer":
        return "Int"
    if kind == "array":
        inside = _type(schema.get("items", {}))
        return (
            f"({inside})[]" if " " in inside and not inside.startswith("Record") else f"{inside}[]"
        )
    if kind == "object":
        return f"Record<string, {_type(schema.get('additionalProperties') or {})}>"
    return _PLAIN.get(str(kind), "unknown")


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    chosen = parser.parse_args(arguments)
    text = typescript(openapi(ROUTES), ROOTS)
    if TARGET.is_file() and TARGET.read_text("utf-8") == text:
        return 0
    if chosen.check:
        print(f"{TARGET.name} is not what the service serves: run 'make page-types'")
        return 1
    TARGET.write_text(text, "utf-8")
    print(f"page-types: wrote {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
