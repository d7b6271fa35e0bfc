"""`wrap` meters a client or session of the boto3 family in one line, by botocore's events."""

from pricekeeper.client.wrapping.wrapper import wrap

__all__ = ["wrap"]
