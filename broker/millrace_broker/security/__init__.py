"""Who a client is and what it may do: principals, rights, what a request needs.

Values in, values out. Knows no sockets, no ZooKeeper and no request's bytes.
"""
