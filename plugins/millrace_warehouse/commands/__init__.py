"""The verbs of a warehouse, each spelt once, and the commands for people and scripts."""
