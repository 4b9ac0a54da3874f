"""The table people query: its hours, their revisions and their expiry. Never reads a topic."""
