"""The API on the wire: request bodies, answers, their bounds, and the table of operations.

Service and client both import this package. Times are RFC 3339 text in UTC, money is in
micro-dollars.

Clients decode answers strictly: a new value of a `Literal` in an answer breaks older clients, so
add a field instead. A rule in `extra_json_schema` is only documented here; the code that reads the
field checks it, with a better error message.
"""
