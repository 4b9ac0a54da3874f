"""Produce, fetch and list-offsets for the partitions stored on this broker.

Knows no sockets and no wire format.
"""
