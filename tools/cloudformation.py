"""The CloudFormation template of the tables, made from the one source that knows them.

::

    python tools/cloudformation.py            write deploy/tables.template.yaml
    python tools/cloudformation.py --check    say whether the file is up to date, and touch nothing

Tables record spend, so nothing here deletes one: no deleted stack, no replacement, no slip in
the console.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from pricekeeper.settings import PREFIX_DEFAULT
from pricekeeper.storage.tables import ALL_TABLES, DAILY_TOTAL, USAGE_AGG_SHARDED, Table
from pricekeeper.storage.values import EXPIRY, PARTITION_KEY, SORT_KEY

TEMPLATE: Final = Path(__file__).resolve().parent.parent / "deploy" / "tables.template.yaml"
PREFIX_PARAMETER: Final = "TablePrefix"
STREAM_PARAMETER: Final = "UsageStream"
STREAMED: Final = (USAGE_AGG_SHARDED, DAILY_TOTAL)

_HEADER: Final = (
    "# Made by tools/cloudformation.py from src/pricekeeper/storage/tables.py.\n"
    "# Not edited by hand: a test holds the two together.\n"
)
_PREFIX: Final = f"${{{PREFIX_PARAMETER}}}"
_LINE_WIDTH: Final = 100


def table_name(table: Table) -> str:
    """What the table is called in DynamoDB, with the prefix still to be filled in."""
    return _PREFIX + table.name


def logical_id(table: Table) -> str:
    """What the table is called inside the template."""
    return f"{table.name}Table"


def template() -> dict[str, Any]:
    """The whole template."""
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "The tables of pricekeeper: on demand, encrypted, restorable, never deleted",
        "Parameters": {
            PREFIX_PARAMETER: {
                "Type": "String",
                "Default": PREFIX_DEFAULT,
                "AllowedPattern": "[A-Za-z0-9_.-]{1,100}",
                "Description": "What the names of all tables start with, as in PRICEKEEPER_STORE",
            },
            STREAM_PARAMETER: {
                "Type": "String",
                "Default": "NONE",
                "AllowedValues": ["NONE", "OLD_IMAGE", "NEW_IMAGE", "NEW_AND_OLD_IMAGES"],
                "Description": "The stream of UsageAggSharded and DailyTotal; docs/deploy.md",
            },
        },
        "Conditions": {
            STREAM_PARAMETER: {"Fn::Not": [{"Fn::Equals": [{"Ref": STREAM_PARAMETER}, "NONE"]}]}
        },
        "Resources": {logical_id(table): _resource(table) for table in ALL_TABLES},
        "Outputs": _outputs(),
    }


def render() -> str:
    """The template as the text of its file."""
    body = yaml.safe_dump(template(), sort_keys=False, width=_LINE_WIDTH, allow_unicode=True)
    return _HEADER + body


def _resource(table: Table) -> dict[str, Any]:
    keys = {PARTITION_KEY: "HASH"} | ({SORT_KEY: "RANGE"} if table.sorted else {})
    properties: dict[str, Any] = {
        "TableName": {"Fn::Sub": table_name(table)},
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in keys],
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in keys.items()],
        "SSESpecification": {"SSEEnabled": True},
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
        "DeletionProtectionEnabled": True,
    }
    if table.expires:
        properties["TimeToLiveSpecification"] = {"AttributeName": EXPIRY, "Enabled": True}
    if table in STREAMED:
        stream = {"StreamViewType": {"Ref": STREAM_PARAMETER}}
        properties["StreamSpecification"] = {
            "Fn::If": [STREAM_PARAMETER, stream, {"Ref": "AWS::NoValue"}]
        }
    return {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": properties,
    }


def _outputs() -> dict[str, Any]:
    arn = "arn:${AWS::Partition}:dynamodb:${AWS::Region}:${AWS::AccountId}:table/" + _PREFIX + "*"
    return {
        "Store": {
            "Description": "The value of PRICEKEEPER_STORE",
            "Value": {"Fn::Sub": "dynamodb://${AWS::Region}?prefix=" + _PREFIX},
        },
        "TablesArn": {
            "Description": "The resource of the IAM policy's statements",
            "Value": {"Fn::Sub": arn},
        },
        **{
            f"{logical_id(table)}Arn": {"Value": {"Fn::GetAtt": [logical_id(table), "Arn"]}}
            for table in ALL_TABLES
        },
        **{
            f"{logical_id(table)}StreamArn": {
                "Condition": STREAM_PARAMETER,
                "Value": {"Fn::GetAtt": [logical_id(table), "StreamArn"]},
            }
            for table in STREAMED
        },
    }


def main(arguments: list[str]) -> int:
    """Write the file, or check it; 1 if it is not what it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    wanted = render()
    if not parser.parse_args(arguments).check:
        TEMPLATE.write_text(wanted, encoding="utf-8")
        print(f"wrote {len(ALL_TABLES)} tables to {TEMPLATE.name}")
        return 0
    if TEMPLATE.is_file() and TEMPLATE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{TEMPLATE.name} is not up to date: run python tools/cloudformation.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
