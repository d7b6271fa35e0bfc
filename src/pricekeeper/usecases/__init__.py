"""The use cases of the operations, without HTTP.

A use case is a function. It takes the services, the client and the body as typed values, and
returns the answer as a type of `wire`, or raises. Its caller has checked the credentials. `table`
joins the operations to their use cases.
"""
