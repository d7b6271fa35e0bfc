"""Forecasts: where the spend of a window will end, within which bounds, and when a limit is spent.

Nothing here is accounting: the numbers are estimates, made from exact ones.
"""

from pricekeeper.forecast.forecast import Forecast, Hourly, Stretch, forecast
from pricekeeper.forecast.service import RecordedHours, SpendHistory

__all__ = ["Forecast", "Hourly", "RecordedHours", "SpendHistory", "Stretch", "forecast"]
