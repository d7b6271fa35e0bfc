"""A hundred calls in a bad world, the short half of ``make soak-client``."""

from pathlib import Path

import pytest

from client.soak import Soak


@pytest.mark.slow
async def test_nothing_is_missing_from_the_bill(tmp_path: Path) -> None:
    """Kills, restarts, abandoned streams and timeouts: each call is counted, or marked."""
    report = await Soak(tmp_path, calls=40, seed=14, processes=3).run()

    assert report.wrong == []
    assert report.equal + report.above == 40
    assert report.money.held == 0
    assert report.equal > 22
    happens = {"kill", "restart", "abandoned", "timeout", "stream", "whole", "converse", "invoke"}
    assert happens <= set(report.happened)
