"""Where the service's own secrets come from: the environment, a file, or AWS Secrets Manager."""

from pricekeeper.secret_sources.source import SecretSource, open_source

__all__ = ["SecretSource", "open_source"]
