"""A real service and a stand-in for Bedrock, for tests of programs that use Price Keeper.

::

    with pricekeeper.testing.service() as service, pricekeeper.testing.bedrock() as bedrock:
        ...

Both run in this process on loopback ports. Data is deleted at the end of the block.
"""

try:
    from pricekeeper.testing.bedrock_standin import Bedrock, bedrock
    from pricekeeper.testing.clocks import MovableClock
    from pricekeeper.testing.ready_service import Service, service
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] == "pricekeeper":
        raise
    raise ImportError(
        f"pricekeeper.testing runs the service, and {error.name} is not installed; "
        "install it with: pip install 'bedrock-price-keeper[server]'"
    ) from error

from pricekeeper.standin import Script

__all__ = ["Bedrock", "MovableClock", "Script", "Service", "bedrock", "service"]
