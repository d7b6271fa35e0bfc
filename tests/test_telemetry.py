"""The meter: counts what stores do."""

from pricekeeper.telemetry import StoreMeter


def test_a_new_meter_has_counted_nothing() -> None:
    """What was never seen reads as zero, without having to be prepared."""
    meter = StoreMeter()

    assert meter.calls["get"] == 0
    assert meter.write_half_units["Config"] == 0
    assert (meter.commits, meter.committed_operations, meter.swept) == (0, 0, 0)


def test_meters_do_not_share_their_counters() -> None:
    """Two stores in one process are counted apart."""
    one, other = StoreMeter(), StoreMeter()

    one.calls["get"] += 1

    assert other.calls["get"] == 0


def test_a_cleared_meter_is_a_new_one() -> None:
    """Whoever holds the meter goes on counting in it, from zero."""
    meter = StoreMeter()
    meter.calls["update"] += 3
    meter.attempts["UpdateItem"] += 4
    meter.faults["throttled"] += 1
    meter.read_half_units["Config"] += 1
    meter.write_half_units["Config"] += 2
    meter.commits = meter.committed_operations = meter.swept = 5

    meter.clear()

    assert meter == StoreMeter()
