"""Histories of one replicated partition, drawn at random, on the product's own state machine: `make sim`.

`millrace_broker.replication` decides. Disks, network, clock, ZooKeeper and clients are models. A seed is a
history.
"""
