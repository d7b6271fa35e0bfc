"""The composition root: from settings to running services, in one place."""

from pricekeeper.bootstrap.price_sources import price_source
from pricekeeper.bootstrap.services import Services, open_services
from pricekeeper.bootstrap.supervision import Supervisor

__all__ = ["Services", "Supervisor", "open_services", "price_source"]
