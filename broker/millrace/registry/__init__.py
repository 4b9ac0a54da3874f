"""The schema registry: Avro schemas by id, on the REST paths that Confluent's clients speak."""
