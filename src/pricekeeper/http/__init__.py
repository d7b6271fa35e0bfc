"""The REST service: the only place that knows HTTP."""

from pricekeeper.http.app import app_from_environment, make_app

__all__ = ["app_from_environment", "make_app"]
