"""CloudFormation as far as we need it: a template read, and what a stack makes of its texts."""

from pathlib import Path
from typing import Any

from cfnlint.decode import decode_str

REGION = "eu-central-1"
ACCOUNT = "123456789012"


def read_template(path: Path) -> dict[str, Any]:
    """The template, its short forms written out."""
    document, problems = decode_str(path.read_text(encoding="utf-8"))
    assert problems == []
    return document  # type: ignore[no-any-return]


def filled_in(text: str, prefix: str) -> str:
    """What ``Fn::Sub`` makes of the text, in a stack with that table prefix."""
    for name, value in {
        "TablePrefix": prefix,
        "AWS::Partition": "aws",
        "AWS::Region": REGION,
        "AWS::AccountId": ACCOUNT,
    }.items():
        text = text.replace(f"${{{name}}}", value)
    assert "${" not in text
    return text
