"""The shared store: Amazon DynamoDB over aiohttp, with our own signer and our own retries."""
