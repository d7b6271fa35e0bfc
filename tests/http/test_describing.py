"""Answers are made from values of the same names."""

from pricekeeper.activity.event import AuthorizationRow
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.usecases.describing import describe
from pricekeeper.wire.activity import AuthorizationEventRow


def test_what_is_held_or_unsettled_is_rounded_up() -> None:
    """A fraction of a micro-dollar is shown as one, so no hold looks like none."""
    row = AuthorizationRow("web", "premium", 1, 0, 0, 1, 1, PICOS_PER_MICRO + 1)
    shown = describe(AuthorizationEventRow, row)
    assert (shown.held_usd_micros, shown.unsettled_usd_micros) == (1, 2)
    assert (shown.app_id, shown.model_label, shown.authorized) == ("web", "premium", 1)
