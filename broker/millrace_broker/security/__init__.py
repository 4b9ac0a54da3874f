"""The identity and the rights of clients: principals, logins, rights, and the rights that requests need.

Values in, values out. Knows no sockets, no ZooKeeper and no request's bytes.
"""
