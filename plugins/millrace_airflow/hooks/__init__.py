"""The hook of connection type `millrace`."""
