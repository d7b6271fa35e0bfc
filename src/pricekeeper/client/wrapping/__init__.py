"""One line puts a program inside its budget: `wrap` for clients and sessions of the boto3 family.

botocore's own events carry it, so the client stays the object that it was, also inside of
frameworks that were given it. What each event does is in `hooks`; one call from its
authorization to its settlement is `metered_call`; streams are metered to their end by `streams`
and `async_streams`; denials as the client's own exceptions are made by `denials`.
"""

from pricekeeper.client.wrapping.wrapper import wrap

__all__ = ["wrap"]
