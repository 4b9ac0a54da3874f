"""The schema registry: Avro schemas by id over HTTP, its client, and the check of a folder of schemas.

The package does not depend on the broker.
"""
