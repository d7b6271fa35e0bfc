"""Forecasts where the spend of a window will end, and when a limit is reached.

These are estimates from exact numbers, not accounting.
"""

from pricekeeper.forecast.forecast import Forecast, Hourly, Stretch, forecast
from pricekeeper.forecast.service import RecordedHours, SpendHistory

__all__ = ["Forecast", "Hourly", "RecordedHours", "SpendHistory", "Stretch", "forecast"]
