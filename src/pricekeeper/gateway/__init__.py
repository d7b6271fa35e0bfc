"""The gateway: Bedrock's own paths for any client, with every call authorized and counted."""
