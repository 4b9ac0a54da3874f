"""What deferred tasks wait for."""
