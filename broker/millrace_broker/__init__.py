"""The log broker: partitions on disk, their replicas, consumer groups, and Kafka's protocol in front of them.

Guests bring APIs and metrics of their own: the mirror is one. Imports the foundation `millrace` alone.
"""
