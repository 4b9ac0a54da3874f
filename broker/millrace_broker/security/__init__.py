"""The identity and the rights of clients: principals, logins, rights, and the rights that requests need.

Values in, values out: the package uses no sockets, no ZooKeeper and no bytes of requests.
"""
