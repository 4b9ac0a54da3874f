"""Millrace: event streams from every datacenter into the warehouse, with proof that nothing was lost."""

__version__ = "0.1.0"
