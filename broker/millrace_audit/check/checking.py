"""The whole check of one topic: first the reports, then the log, which has every event that they name."""

from __future__ import annotations

from functools import cache

from millrace.client.cluster_client import ClusterClient
from millrace_audit.check.audit_records import AuditRecords
from millrace_audit.check.callbacks import CallbackOutcomes
from millrace_audit.check.comparing import compare, compare_callbacks
from millrace_audit.check.events import Events
from millrace_audit.check.findings import Summary, Violation, Violations
from millrace_audit.check.log import records_of
from millrace_audit.reports.event import has_header
from millrace_audit.reports.messages import AUDIT_TOPIC, AuditCodec
from millrace_registry.client import SchemaRegistryClient, UnknownSchema


def check_topic(
    client: ClusterClient, registry: SchemaRegistryClient, topic: str, outcomes: CallbackOutcomes
) -> tuple[list[Summary], list[Violation]]:
    """Return the instances that announced the topic or have events in it, and the rules that are broken.

    Raise MillraceError when a topic cannot be read, or `outcomes` do not fit the instances.
    """

    @cache
    def is_audited(schema_id: int) -> bool:
        try:
            return has_header(registry.schema(schema_id))
        except UnknownSchema:
            return False

    violations = Violations()
    records = AuditRecords(topic, AuditCodec(registry), violations)
    for stored in records_of(client, AUDIT_TOPIC):
        records.take(stored)
    events = Events(topic, client.topics(), records.instances, is_audited, outcomes, violations)
    for stored in records_of(client, topic):
        events.take(stored)
    instances = [one for one in records.instances.values() if topic in one.topics or one.windows]
    summaries = [compare(instance, topic, violations) for instance in instances]
    compare_callbacks(outcomes, instances, violations)
    if not instances:
        violations.add(None, "no hello and no event of a producer was found: is this its topic and cluster?")
    named = violations.of({None, *(instance.number for instance in instances)})
    return summaries, named + records.unreadable.of({None})
