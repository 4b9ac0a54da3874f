"""The schema that the columns of a query follow: looked up once, in the driver.

Says what to do if there is none, or if messages of the format cannot fill its columns. Does not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_avro.schema import SchemaError
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_registry.subjects import Subjects
from millrace_spark.source.options import SourceOptions
from millrace_warehouse.columns import check_table_schema
from millrace_warehouse.log.formats import AVRO, JSON, PLAIN_SCHEMAS, MessageFormat, check_format, other_look


def table_schema(options: SourceOptions) -> Mapping[str, Any] | None:
    """Look up the schema that the columns follow. Return None for raw columns.

    Raise MillraceError if messages of the format cannot fill its columns.
    """
    if not options.value_format:
        return None
    if options.registry_url is None:
        return PLAIN_SCHEMAS[options.value_format]
    with SchemaRegistryClient(options.registry_url) as registry:
        schema: dict[str, Any]
        if options.registry_schema_id is not None:
            schema = registry.schema(options.registry_schema_id)
        else:
            schema = _newest_schema(options, registry)
    try:
        check_format(MessageFormat(options.value_format), check_table_schema(schema))
    except SchemaError as error:
        raise MillraceError(
            f"{options.topic} cannot be read as {options.value_format} with this schema: {error}; correct the"
            " schema and register it, or name another with registry.subject or registry.schema.id"
        ) from None
    return schema


def _newest_schema(options: SourceOptions, registry: SchemaRegistryClient) -> dict[str, Any]:
    subject = options.registry_subject or Subjects.of_environment().of(options.topic)
    try:
        schema: dict[str, Any] = registry.latest(subject).schema
    except UnknownSchema:
        if options.value_format == AVRO:
            _check_is_avro(options, registry)
        draft = f"draft it with `millrace init schema {options.topic} --from-topic`, "
        raise MillraceError(
            f"no schema is registered for subject {subject!r} at {registry.url}:"
            f" {draft if options.value_format == JSON else ''}register it with `millrace schemas apply`, or"
            " name another subject with registry.subject"
        ) from None
    return schema


def _check_is_avro(options: SourceOptions, registry: SchemaRegistryClient) -> None:
    with ClusterClient(options.bootstrap, security=options.security) as client:
        look = other_look(client, options.topic, AVRO, registry.find_schema)
    if look is not None:
        raise MillraceError(
            f"the newest messages of {options.topic} look like {look.plural}, and the query expects Avro:"
            f' give .option("value.format", "{look.formats[0]}")'
        )
