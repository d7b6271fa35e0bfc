"""The IAM policies grant what our own clients of AWS ask for: no less, and no more."""

import ast
import asyncio
import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import pricekeeper.storage.dynamodb
from attribution import BY
from deploy.conftest import DEPLOY
from deploy.policies import Policy, permissions
from deploy.stacks import lint
from fault_proxy import FaultProxy
from pricekeeper.audit import AuditTrail, Change
from pricekeeper.audit.reading import TrailReader, WantedEntries
from pricekeeper.audit.verification import TrailVerifier
from pricekeeper.clock import SystemClock
from pricekeeper.settings import PREFIX_DEFAULT, DynamoDbLocation
from pricekeeper.storage import (
    ITEM_EXISTS,
    Check,
    Delete,
    Key,
    Put,
    Query,
    Set,
    Store,
    Update,
    open_store,
)
from pricekeeper.storage.dynamodb.rendering import _KINDS_IN_TRANSACTION
from pricekeeper.storage.tables import ALL_TABLES, AUDIT_TRAIL, CONFIG, Table

SERVICE = DEPLOY / "iam-policy.json"
TABLES_CREATE = DEPLOY / "iam-policy-tables-create.json"
SECRETS = DEPLOY / "iam-policy-secrets.json"

IN_TRANSACTIONS = {f"{kind}Item" for kind in _KINDS_IN_TRANSACTION.values()}
"""There is no permission for a transaction as such, only for the operations inside."""


def actions_named_in(source: Path) -> Iterator[str]:
    """The first argument of every ``client.call(...)``, which must be there to be read.

    ``_call`` and ``_write`` hand their ``action`` on, so it is read where they are called.
    """
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"call", "_call", "_write"}
        ):
            action = node.args[0]
            if isinstance(action, ast.Name) and action.id == "action":
                continue
            assert isinstance(action, ast.Constant), f"{source.name}:{node.lineno}: no literal"
            assert isinstance(action.value, str)
            yield action.value


def test_every_action_in_the_adapters_source_is_granted_and_no_other() -> None:
    """Also those that a test could not provoke; a new call fails here until it is granted."""
    (folder,) = pricekeeper.storage.dynamodb.__path__
    named = {action for path in Path(folder).glob("*.py") for action in actions_named_in(path)}
    assert "TransactWriteItems" in named
    needed = (named - {"TransactWriteItems"}) | IN_TRANSACTIONS

    granted = Policy.read(SERVICE).actions | Policy.read(TABLES_CREATE).actions

    assert granted == {f"dynamodb:{action}" for action in needed}


async def test_the_service_needs_exactly_its_policy(proxy: FaultProxy, prefix: str) -> None:
    """On tables that exist: every call of the port is allowed, and every grant is used by one."""
    location = DynamoDbLocation("us-east-1", prefix, proxy.endpoint)
    store = await open_store(location, clock=SystemClock())
    await store.create_tables()
    await store.close()
    proxy.seen.clear()
    policy = Policy.read(SERVICE)

    store = await open_store(location, clock=SystemClock())
    await store.create_tables()  # as every start does
    for table in ALL_TABLES:
        if table != AUDIT_TRAIL:
            await use_every_call(store, table)
    await AuditTrail(store, SystemClock()).apply(BY, Change("a", "b", None), ())
    await TrailReader(store).list_all(WantedEntries(), None)
    await TrailVerifier(store, SystemClock()).verify()
    await store.close()

    needed = permissions(proxy.seen)
    assert [permission for permission in needed if not policy.allows(permission)] == []
    assert policy.unused(needed) == set()


def test_no_entry_of_the_audit_trail_can_be_removed_or_changed() -> None:
    """With the service's role alone; it only needs to put."""
    table = f"{PREFIX_DEFAULT}{AUDIT_TRAIL.name}"
    granted = {permission.action for permission in Policy.read(SERVICE).granted([table])}
    assert "dynamodb:PutItem" in granted
    assert granted.isdisjoint({"dynamodb:DeleteItem", "dynamodb:UpdateItem"})
    other = Policy.read(SERVICE).granted([f"{PREFIX_DEFAULT}{CONFIG.name}"])
    assert "dynamodb:DeleteItem" in {permission.action for permission in other}


async def test_the_command_that_creates_tables_needs_exactly_its_own_policy(
    proxy: FaultProxy, prefix: str
) -> None:
    """`pricekeeper tables create` on an account without tables; its policy writes no item."""
    policy = Policy.read(TABLES_CREATE)
    store = f"dynamodb://us-east-1?prefix={prefix}&endpoint={proxy.endpoint}"

    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pricekeeper", "tables", "create", "--store", store),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await command.communicate()

    assert command.returncode == 0, told.decode()
    needed = permissions(proxy.seen)
    assert [permission for permission in needed if not policy.allows(permission)] == []
    assert policy.unused(needed) == set()


@pytest.mark.parametrize("path", [SERVICE, TABLES_CREATE], ids=lambda path: path.name)
def test_a_policy_reaches_our_tables_alone(path: Path) -> None:
    """Every statement that grants something is for DynamoDB tables with the default prefix."""
    for statement in Policy.read(path).statements:
        assert statement["Resource"] == f"arn:aws:dynamodb:*:*:table/{PREFIX_DEFAULT}*"


def test_the_policy_for_secrets_reads_two_and_changes_none() -> None:
    """The one action that our own client names, on the two secrets that the guide names."""
    (statement,) = Policy.read(SECRETS).statements
    assert statement["Effect"] == "Allow"
    assert statement["Action"] == ["secretsmanager:GetSecretValue"]
    guide = (DEPLOY.parent / "docs" / "deploy.md").read_text("utf-8")
    names = re.findall(r'"value": "aws:([^"]+)"', guide)
    arn = "arn:aws:secretsmanager:*:*:secret:"
    assert statement["Resource"] == [f"{arn}{name}-*" for name in names]


@pytest.mark.parametrize("path", [SERVICE, TABLES_CREATE, SECRETS], ids=lambda path: path.name)
def test_iam_knows_every_action(path: Path) -> None:
    """cfn-lint, which has the list of all actions, finds nothing wrong with the document."""
    document = json.loads(path.read_text(encoding="utf-8"))
    properties = {"PolicyDocument": document}
    template = {"Resources": {"P": {"Type": "AWS::IAM::ManagedPolicy", "Properties": properties}}}

    assert lint(json.dumps(template)) == []


async def use_every_call(store: Store, table: Table) -> None:
    """Each call of the port once, and each kind of operation in a transaction."""
    keys = [
        Key(f"{uuid.uuid4().hex}-{n}", "1" if table.sorted else None) for n in range(4)
    ]  # one for each operation of the transaction
    items = [{"PK": key.pk} | ({} if key.sk is None else {"SK": key.sk}) for key in keys]
    for item in items:
        await store.put(Put(table, {**item}))
    await store.update(Update(table, keys[0], (Set("n", 1),)))
    await store.get(table, keys[0])
    await store.batch_get([(table, key) for key in keys])
    if table.sorted:
        await store.query(Query(table, keys[0].pk))
    await store.transact(
        [
            Put(table, {**items[0]}),
            Update(table, keys[1], (Set("n", 2),)),
            Delete(table, keys[2]),
            Check(table, keys[3], ITEM_EXISTS),
        ],
    )
    await store.delete(Delete(table, keys[0]))
