"""Copying the partitions of origin clusters into this one, whole batches, each exactly once."""
