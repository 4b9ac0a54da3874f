"""One blocking client of any Kafka cluster: metadata, offsets, fetches, groups and topic settings.

Decodes no records and joins no group by itself.
"""
