"""The version of this package. The file in a wheel has the wheel's."""

__version__ = "0.1.0"
