"""The composition root: makes running services from settings."""

from pricekeeper.bootstrap.administration import (
    HOW_TO_MAKE_A_ROOT,
    no_administrator,
    require_administrator,
)
from pricekeeper.bootstrap.price_sources import price_source
from pricekeeper.bootstrap.services import STORE_WAIT_MS, Services, open_services
from pricekeeper.bootstrap.supervision import Supervisor

__all__ = [
    "HOW_TO_MAKE_A_ROOT",
    "STORE_WAIT_MS",
    "Services",
    "Supervisor",
    "no_administrator",
    "open_services",
    "price_source",
    "require_administrator",
]
