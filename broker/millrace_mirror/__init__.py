"""Copy the partitions of origin clusters into this cluster, whole batches, each exactly once."""
