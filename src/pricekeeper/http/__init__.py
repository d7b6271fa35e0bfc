"""The REST service: the only place that knows HTTP."""

from pricekeeper.http.app import make_app

__all__ = ["make_app"]
