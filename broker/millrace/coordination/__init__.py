"""All that ZooKeeper holds: brokers, topics, groups and offsets; and a ZooKeeper for machines without one.

Decides nothing about what happens inside a partition.
"""
