"""``python -m pricekeeper``."""

from pricekeeper.cli import main

main()
