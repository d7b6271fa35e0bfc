"""The composition root: makes running services from settings."""

from pricekeeper.bootstrap.services import (
    HOW_TO_MAKE_A_ROOT,
    STORE_WAIT_MS,
    Services,
    no_administrator,
    open_services,
    price_source,
    require_administrator,
)
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
