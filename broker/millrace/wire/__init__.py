"""Kafka's bytes: framing, messages, and the blocking connection. Knows no disk and no ZooKeeper."""
