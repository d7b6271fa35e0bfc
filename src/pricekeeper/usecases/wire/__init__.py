"""The shapes on the wire, as the REST contract names them: a module for each part of the API.

These are the types that requests are parsed into and answers are encoded from, and the OpenAPI
document is generated from them. Times are RFC 3339 text in UTC, money is integer micro-dollars.

A rule in `extra_json_schema` is only told here: whoever reads the field keeps it, and says what is
wrong in better words than a pattern has.
"""
