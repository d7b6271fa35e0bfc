"""The shared store: DynamoDB over aiohttp, with our own signer and retries."""
