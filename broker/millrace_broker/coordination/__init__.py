"""The broker's data in ZooKeeper: brokers, topics, groups and offsets, users, rules and quotas.

Decides nothing about what happens inside a partition.
"""
