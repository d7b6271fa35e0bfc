"""The short half of the soak; ``make soak-gateway`` has all of it."""

from pathlib import Path

import pytest

from gateway.soak import Soak


@pytest.mark.parametrize("seed", [15])
async def test_the_ledger_is_the_bill_or_above_it_and_marked(
    tmp_path: Path, store: str, seed: int
) -> None:
    """With streams that are left, an upstream that fails, and one kill of the gateway."""
    report = await Soak(tmp_path, store, calls=150, seed=seed, kills=1).run()
    assert report.wrong == []
    assert report.books.held == 0
    assert report.equal + report.above == 150
    assert report.happened["abandoned"] >= 15
    assert report.happened["kills"] == 1
