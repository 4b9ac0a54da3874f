"""The verdict on a window: facts, their comparison, and the table of rules; no database."""
