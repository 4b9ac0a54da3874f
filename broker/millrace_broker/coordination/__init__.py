"""The broker's data in ZooKeeper: brokers, topics, groups and offsets, users, rules and quotas.

Decisions about partitions are made elsewhere.
"""
