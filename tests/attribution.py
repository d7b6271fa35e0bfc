"""The caller of changes in tests about other things."""

from pricekeeper.authority import DEPLOYMENT, Attribution, may_produce

BY = Attribution("tests/tester", "192.0.2.1", "a-request-of-a-test", authority=DEPLOYMENT)
PERMIT = may_produce(DEPLOYMENT, DEPLOYMENT)
