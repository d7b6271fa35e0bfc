"""The gateway: Bedrock's own paths, for any client, with the price keeper in between.

Every call is authorized before it reaches Bedrock, in this process, and captured after it. Bytes
on the way back are the upstream's. `relay` has one call from its request to its settlement,
`identity` says who calls, `planning` what a call can cost, `upstream` sends it on, `errors` answers
in the words that AWS clients know. A service without an upstream loads none of them.
"""
