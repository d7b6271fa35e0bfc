"""Bedrock Price Keeper: who are you, how fast, how much, for every model call."""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
