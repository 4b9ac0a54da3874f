"""Operators: one file per kind of work."""
