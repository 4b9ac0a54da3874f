"""To be written: what this package owns and refuses."""
