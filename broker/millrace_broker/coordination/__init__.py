"""All that ZooKeeper holds: brokers, topics, groups and offsets.

Decides nothing about what happens inside a partition.
"""
