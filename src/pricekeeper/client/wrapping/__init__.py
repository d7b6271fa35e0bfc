"""`wrap` meters a client or session of the boto3 family in one line.

It registers handlers for botocore's events (`hooks`), so the client stays the same object, also
inside frameworks. `metered_call` is one call from authorization to settlement; `streams` and
`async_streams` meter streams to their end.
"""

from pricekeeper.client.wrapping.wrapper import wrap

__all__ = ["wrap"]
