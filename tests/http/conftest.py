"""A real server on each store, and two tenants in it."""

from http_fixtures import api, other, server, tenant

__all__ = ["api", "other", "server", "tenant"]
