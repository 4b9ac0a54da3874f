"""One blocking client of any Kafka cluster: metadata, offsets, fetches, groups and topic settings.

Decodes no records but those that MirrorMaker 2 keeps, and joins no group by itself.
"""
