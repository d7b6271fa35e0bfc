"""IAM as far as we need it: what a policy grants, and what a request to DynamoDB takes.

There is no permission for a transaction as such. AWS asks for that of each operation inside.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from deploy.stacks import ACCOUNT, REGION
from fault_proxy import Seen


class Permission(NamedTuple):
    """An action on a table, by IAM's name and DynamoDB's."""

    action: str
    table: str


class Policy:
    """A policy document; only what ours use of the language."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.statements: list[dict[str, Any]] = [
            statement for statement in document["Statement"] if statement["Effect"] == "Allow"
        ]
        self.denials: list[dict[str, Any]] = [
            statement for statement in document["Statement"] if statement["Effect"] == "Deny"
        ]

    @classmethod
    def read(cls, path: Path) -> "Policy":
        return cls(json.loads(path.read_text(encoding="utf-8")))

    @property
    def actions(self) -> set[str]:
        """Every granted action, on any resource."""
        return {action for statement in self.statements for action in statement["Action"]}

    def allows(self, permission: Permission) -> bool:
        arn = _arn(permission)
        is_denied = any(
            permission.action in denial["Action"] and fnmatchcase(arn, denial["Resource"])
            for denial in self.denials
        )
        return not is_denied and any(self._grants(permission))

    def granted(self, tables: Iterable[str]) -> set[Permission]:
        """Everything that may be done to these tables."""
        possible = (Permission(action, table) for table in tables for action in self.actions)
        return {permission for permission in possible if self.allows(permission)}

    def unused(self, permissions: Iterable[Permission]) -> set[tuple[str, str]]:
        """What is granted, by statement and action, without any of these needing it."""
        granted = {(s["Sid"], action) for s in self.statements for action in s["Action"]}
        needed = {grant for permission in permissions for grant in self._grants(permission)}
        return granted - needed

    def _grants(self, permission: Permission) -> Iterator[tuple[str, str]]:
        arn = _arn(permission)
        for statement in self.statements:
            if permission.action in statement["Action"] and fnmatchcase(arn, statement["Resource"]):
                yield statement["Sid"], permission.action


def _arn(permission: Permission) -> str:
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{permission.table}"


def permissions(seen: Iterable[Seen]) -> set[Permission]:
    """What AWS would have asked for, had it been AWS."""
    return {permission for request in seen for permission in _permissions(request)}


def _permissions(seen: Seen) -> Iterator[Permission]:
    request = seen.request
    if seen.action == "TransactWriteItems":
        for operation in request["TransactItems"]:
            for kind, details in operation.items():
                yield Permission(f"dynamodb:{kind}Item", details["TableName"])
    elif seen.action == "BatchGetItem":
        for table in request["RequestItems"]:
            yield Permission("dynamodb:BatchGetItem", table)
    else:
        yield Permission(f"dynamodb:{seen.action}", request["TableName"])
