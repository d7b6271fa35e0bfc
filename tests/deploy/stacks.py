"""CloudFormation as far as we need it: a template read, checked, and filled in as a stack does.

cfn-lint is imported by the functions that need it. Every worker would import it to collect tests.
"""

from pathlib import Path
from typing import Any

REGION = "eu-central-1"
ACCOUNT = "123456789012"


def read_template(path: Path) -> dict[str, Any]:
    """The template, its short forms written out."""
    from cfnlint.decode import decode_str  # noqa: PLC0415

    document, problems = decode_str(path.read_text(encoding="utf-8"))
    assert problems == []
    return document  # type: ignore[no-any-return]


def lint(text: str) -> list[str]:
    """Return what cfn-lint finds wrong with a template."""
    from cfnlint.api import lint as matches  # noqa: PLC0415

    return [str(match) for match in matches(text)]


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
