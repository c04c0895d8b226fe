"""gpuwhy says why each GPU of a host is not doing more useful work."""

__version__ = "0.1.0"
