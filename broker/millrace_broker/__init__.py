"""The log broker: partitions on disk, their replicas, consumer groups, and Kafka's protocol in front of them.

Guests, such as the mirror, bring APIs and metrics of their own. The package imports the foundation `millrace`
alone.
"""
