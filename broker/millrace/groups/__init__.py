"""Kafka's classic consumer groups: who is in them, who coordinates them, what they have committed."""
