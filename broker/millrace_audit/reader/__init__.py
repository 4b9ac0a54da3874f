"""The audit reader of one cluster: counts the sequences that arrived and publishes the counts."""
