"""The CloudFormation template makes the very tables that the store would make itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

import cloudformation
from deploy.conftest import DEPLOY
from deploy.stacks import REGION, filled_in, lint, read_template
from fault_proxy import FaultProxy
from pricekeeper.clock import SystemClock
from pricekeeper.settings import PREFIX_DEFAULT, DynamoDbLocation, parse_store_location
from pricekeeper.storage import find_tables_without_expiry, open_store
from pricekeeper.storage.tables import ALL_TABLES


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    return read_template(cloudformation.TEMPLATE)


@pytest.fixture
def client(dynamodb_local: str) -> Iterator[Any]:
    """Amazon's own client, since it is Amazon who makes the tables of a template."""
    client = Session().create_client("dynamodb", region_name=REGION, endpoint_url=dynamodb_local)
    yield client
    client.close()


def test_the_committed_template_is_up_to_date() -> None:
    """A changed table needs a new template."""
    assert cloudformation.main(["--check"]) == 0


def test_check_tells_a_stale_file_and_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` fails for a file that differs or is missing, says what to run, writes nothing."""
    stale = tmp_path / "tables.template.yaml"
    monkeypatch.setattr(cloudformation, "TEMPLATE", stale)

    assert cloudformation.main(["--check"]) == 1
    assert not stale.exists()

    stale.write_text(cloudformation.render() + "\n", encoding="utf-8")

    assert cloudformation.main(["--check"]) == 1
    assert "python tools/cloudformation.py" in capsys.readouterr().err
    assert cloudformation.main([]) == 0
    assert cloudformation.main(["--check"]) == 0


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.template.yaml")), ids=lambda p: p.name)
def test_cfn_lint_finds_nothing(path: Path) -> None:
    """No error and no warning."""
    assert lint(path.read_text(encoding="utf-8")) == []


def test_every_table_is_kept_encrypted_and_restorable(template: dict[str, Any]) -> None:
    """Deleting the stack, or a slip, deletes no table; any second of the last weeks is there."""
    assert len(template["Resources"]) == len(ALL_TABLES)
    for resource in template["Resources"].values():
        properties = resource["Properties"]
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("Retain", "Retain")
        assert properties["DeletionProtectionEnabled"] is True
        assert properties["BillingMode"] == "PAY_PER_REQUEST"
        assert properties["SSESpecification"] == {"SSEEnabled": True}
        recovery = properties["PointInTimeRecoverySpecification"]
        assert recovery == {"PointInTimeRecoveryEnabled": True}


async def test_the_store_finds_nothing_left_to_do(
    template: dict[str, Any], client: Any, proxy: FaultProxy, prefix: str
) -> None:
    """Tables made with the template's own properties are what `create_tables` wants, to the key."""
    for resource in template["Resources"].values():
        make_table(client, resource["Properties"], prefix)
    location = DynamoDbLocation(REGION, prefix, proxy.endpoint)
    store = await open_store(location, clock=SystemClock())

    await store.create_tables()
    await store.close()
    assert await find_tables_without_expiry(location, clock=SystemClock()) == []

    assert {seen.action for seen in proxy.seen} == {"DescribeTable", "DescribeTimeToLive"}
    looked_at = {seen.request["TableName"] for seen in proxy.seen}
    assert looked_at == {prefix + table.name for table in ALL_TABLES}


async def test_it_makes_what_the_store_makes(
    template: dict[str, Any], client: Any, dynamodb_local: str, prefix: str
) -> None:
    """Key, key types, billing and expiry are the same from both makers of a table."""
    stored, templated = f"{prefix}store-", f"{prefix}template-"
    location = DynamoDbLocation(REGION, stored, dynamodb_local)
    store = await open_store(location, clock=SystemClock())
    await store.create_tables()
    await store.close()

    for resource in template["Resources"].values():
        make_table(client, resource["Properties"], templated)

    for table in ALL_TABLES:
        assert shape(client, templated + table.name) == shape(client, stored + table.name)


def test_the_prefix_is_the_settings_own(template: dict[str, Any]) -> None:
    """By default, stack and service agree; and the stack's output is a store that can be opened."""
    assert template["Parameters"]["TablePrefix"]["Default"] == PREFIX_DEFAULT

    url = filled_in(template["Outputs"]["Store"]["Value"]["Fn::Sub"], "team-a_1.")

    assert parse_store_location(url) == DynamoDbLocation(REGION, "team-a_1.")


def test_the_tables_of_usage_have_a_stream_if_the_stack_says_so(
    template: dict[str, Any], client: Any, prefix: str
) -> None:
    """For the retention by Streams; the other tables have none, and by default none has one."""
    assert template["Parameters"]["UsageStream"]["Default"] == "NONE"
    streams = {}
    for resource in template["Resources"].values():
        make_table(client, resource["Properties"], prefix, stream="OLD_IMAGE")
    for table in ALL_TABLES:
        described = client.describe_table(TableName=prefix + table.name)["Table"]
        if "StreamSpecification" in described:
            streams[table.name] = described["StreamSpecification"]["StreamViewType"]
    assert streams == {"UsageAggSharded": "OLD_IMAGE", "DailyTotal": "OLD_IMAGE"}


def make_table(
    client: Any, properties: dict[str, Any], prefix: str, *, stream: str = "NONE"
) -> None:
    """Do what CloudFormation does with a table's properties, as far as an engine can."""
    request = dict(properties)
    streamed = request.pop("StreamSpecification", None)
    if streamed is not None and stream != "NONE":
        condition, specification, _ = streamed["Fn::If"]
        assert specification == {"StreamViewType": {"Ref": condition}}
        request["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream}
    request["TableName"] = filled_in(properties["TableName"]["Fn::Sub"], prefix)
    expiry = request.pop("TimeToLiveSpecification", None)
    for unknown_to_the_engine in ("PointInTimeRecoverySpecification", "SSESpecification"):
        del request[unknown_to_the_engine]
    client.create_table(**request)
    if expiry is not None:
        client.update_time_to_live(TableName=request["TableName"], TimeToLiveSpecification=expiry)


def shape(client: Any, name: str) -> dict[str, Any]:
    """What has to be the same of two tables."""
    table = client.describe_table(TableName=name)["Table"]
    expiry = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    return {
        "KeySchema": table["KeySchema"],
        "AttributeDefinitions": sorted(map(str, table["AttributeDefinitions"])),
        "BillingMode": table["BillingModeSummary"]["BillingMode"],
        "Expiry": (expiry["TimeToLiveStatus"], expiry.get("AttributeName")),
    }
