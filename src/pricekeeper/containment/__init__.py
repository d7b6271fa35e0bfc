"""Containing a leaked secret: what an administrator does to a client, each step written down."""

from pricekeeper.containment.service import Containment

__all__ = ["Containment"]
