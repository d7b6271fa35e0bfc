"""Whoever makes changes in tests that are about something else."""

from pricekeeper.values import Attribution

BY = Attribution("tests/tester", "192.0.2.1", "a-request-of-a-test")
