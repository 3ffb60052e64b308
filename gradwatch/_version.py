"""The version, for everything inside the package that names it."""

__version__ = "0.1.0"
