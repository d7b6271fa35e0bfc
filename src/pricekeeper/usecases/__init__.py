"""What can be asked of the service, whoever carries the question: the operations without HTTP.

A use case is a function. It takes the services, whom it is about and what was asked as values with
their types, and returns the answer of the REST contract as a value (`wire`) or raises.
Whoever calls it has checked who asks. What answers nothing is called on the feature's own service.
"""
