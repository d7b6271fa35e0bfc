"""The version of the package, where nothing else has to be loaded for it."""

__version__ = "0.1.0.dev0"
