"""The sensor that waits for the audit."""
