"""The API on the wire: request bodies, answers, their bounds, and the table of operations.

The service parses requests into these types and encodes its answers from them; the OpenAPI
document is generated from them, and the client decodes answers into them. So this package imports
nothing that only the service needs. Times are RFC 3339 text in UTC, money is in micro-dollars.

A rule in `extra_json_schema` is documented here and checked by the code that reads the field,
which has a better error message than a pattern.
"""
