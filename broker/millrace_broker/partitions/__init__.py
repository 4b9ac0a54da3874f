"""What produce, fetch and list-offsets mean for the partitions stored on this broker.

Knows no sockets and no wire format.
"""
