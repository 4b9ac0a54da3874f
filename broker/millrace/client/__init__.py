"""One blocking client of any Kafka cluster: metadata, offsets, fetches, groups and topic settings.

It decodes only the records that MirrorMaker 2 keeps, and joins no group.
"""
