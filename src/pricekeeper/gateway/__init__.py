"""The gateway: Bedrock's own paths for any client, with every call authorized and counted.

`relay` has a call from request to settlement, `identity` says who calls, `planning` what the call
can cost, `upstream` sends it, `errors` answers in the words of AWS clients. A service without an
upstream loads none of them.
"""
