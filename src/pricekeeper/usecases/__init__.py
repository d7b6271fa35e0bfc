"""The use cases of the operations, without HTTP.

A use case is a function of typed services, client and body. It returns an answer of `wire`, or
raises. Its caller has checked the credentials.
"""
