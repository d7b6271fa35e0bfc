"""Unchanged clients through the gateway, by the lines that its document shows and nothing else.

``make test-clients`` does the same with more clients, in environments of their own.
"""

import os
from pathlib import Path

import pytest

from gateway.scripts import call_and_stream
from gateway.world import App, World
from slowness import slow
from snippets import gateway_environment


@pytest.mark.parametrize(
    ("script", "block", "model"),
    [
        ("boto3_client.py", "", "premium"),
        *slow(
            ("anthropic_bedrock.py", "", "premium"),
            ("openai_client.py", "openai", "gpt"),
            ("anthropic_api.py", "anthropic", "premium"),
        ),
    ],
)
def test_a_client_needs_the_shown_lines_only(
    world: World, app: App, tmp_path: Path, script: str, block: str, model: str
) -> None:
    """One call and one stream are billed and counted alike."""
    before = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "AKIAOFSOMEBODY",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_BEARER_TOKEN_BEDROCK": "x",
    }
    environment = gateway_environment(world.url, app.client_id, app.secret, block, before)
    assert call_and_stream(script, model, environment) == [[], []]
    assert world.ledger.billed_calls == 2
    assert world.assert_equal(app) > 0
