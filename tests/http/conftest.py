"""A real server on each store, and two tenants in it."""

from http_fixtures import api, dynamodb_server, other, server, sqlite_server, tenant

__all__ = ["api", "dynamodb_server", "other", "server", "sqlite_server", "tenant"]
