"""Where the service's own secrets come from: the environment, a file, or AWS Secrets Manager."""

from pricekeeper.secret_sources.source import open_source

__all__ = ["open_source"]
