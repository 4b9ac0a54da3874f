"""Certificates, the names in them, and the credentials of clients. Rights are checked by the broker."""
