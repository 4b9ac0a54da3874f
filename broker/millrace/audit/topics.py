"""The names of the audit topics; apart from the records, so that a broker can know them without Avro."""

AUDIT_TOPIC = "audit"
"""In every cluster that is produced to; in the aggregate cluster a mirror of it, a partition for each."""
OFFLINE_AUDIT_TOPIC = "audit-offline"
"""In the aggregate cluster: what is counted there and in the warehouse."""
