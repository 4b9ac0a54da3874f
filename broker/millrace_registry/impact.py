"""The effect of a changed folder of schemas on the messages that topics still hold. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from millrace.client.cluster_client import ClusterClient
from millrace_registry.avro_schema import AvroSchema, parse
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.compatibility import unreadable
from millrace_registry.directory import AUDIT_NAMESPACE, Change
from millrace_registry.errors import InvalidSchema
from millrace_registry.subjects import full_name

_CHANGED = ("new", "new version", "incompatible")


def with_retained(
    changes: Sequence[Change], cluster: ClusterClient, registry: SchemaRegistryClient
) -> list[Change]:
    """Return the changes with notes about topics whose messages could not be read, and the ungated subjects.

    Topics whose messages have ids of a changed subject, or which are named like its file, are read
    completely; of other topics only the end is read. A subject that a topic uses and that is not in the
    folder gets its own row, `ungated`. The audit's own records are left out.
    """
    from millrace_registry.retained import ids_in  # imports numpy, which no other command on schemas needs

    notes: dict[str, list[str]] = {change.subject: [] for change in changes}
    ungated: dict[str, list[str]] = {}
    changed = {c.subject: c for c in changes if c.state in _CHANGED and c.schema is not None}
    for topic in sorted(name for name in cluster.topics() if not name.startswith("__")):
        ids = ids_in(cluster, topic, tail_only=True)
        concerned = _subjects(registry, ids) | {c.subject for c in changed.values() if c.topic == topic}
        if concerned & changed.keys():
            ids = ids_in(cluster, topic)
        holders = {schema_id: registry.subjects_of(schema_id) for schema_id in sorted(ids)}
        for subject in sorted(concerned & changed.keys()):
            schema = changed[subject].schema
            assert schema is not None
            for schema_id, count in sorted(ids.items()):
                if reason := _why_unreadable(schema, registry, schema_id):
                    notes[subject].append(
                        f"topic {topic}: {count} retained messages of schema id {schema_id} could not be"
                        f" read: {reason}"
                    )
        for schema_id, subjects in holders.items():
            if subjects and not set(subjects) & notes.keys() and not _of_the_audit(registry, schema_id):
                what = f"topic {topic} carries its schema id {schema_id}: put its schema into the folder"
                ungated.setdefault(subjects[0], []).append(what)
    return [
        *(replace(change, notes=(*change.notes, *notes[change.subject])) for change in changes),
        *(Change(subject, "", "ungated", notes=tuple(what)) for subject, what in sorted(ungated.items())),
    ]


def _subjects(registry: SchemaRegistryClient, ids: Iterable[int]) -> set[str]:
    return {subject for schema_id in ids for subject in registry.subjects_of(schema_id)}


def _why_unreadable(reader: AvroSchema, registry: SchemaRegistryClient, schema_id: int) -> str:
    writer = registry.find_schema(schema_id)
    if writer is None:
        return "the registry does not know it"
    try:
        return "; ".join(unreadable(reader, parse(json.dumps(writer), flawed_too=True)))
    except InvalidSchema as error:
        return str(error)


def _of_the_audit(registry: SchemaRegistryClient, schema_id: int) -> bool:
    name = full_name(registry.find_schema(schema_id))
    return name is not None and name.startswith(f"{AUDIT_NAMESPACE}.")
