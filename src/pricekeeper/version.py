"""The version of the package, readable without other imports."""

__version__ = "0.1.0.dev0"
