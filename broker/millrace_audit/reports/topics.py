"""The names of the audit topics; apart from the records, so that a broker can know them without Avro."""

from millrace.config import OFFLINE_AUDIT_TOPIC as OFFLINE_AUDIT_TOPIC

AUDIT_TOPIC = "audit"
"""In every cluster that is produced to; in the aggregate cluster a mirror of it, a partition for each."""
