"""Code shared by the web services of registry and auditor: start, stop, access, limits, database."""
