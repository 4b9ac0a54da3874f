"""The name of a partition."""

TopicPartition = tuple[str, int]
"""A topic and the number of one of its partitions."""
