"""Kafka's protocol as bytes: framing and messages. It uses no disk and no ZooKeeper."""
