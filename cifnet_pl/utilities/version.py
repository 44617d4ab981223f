"""The version of this package, which its build reads here."""

__version__ = "1.0.0"
