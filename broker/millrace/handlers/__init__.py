"""One short file per API of the Kafka protocol: from bytes to what the broker does, and back."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.handlers.alter_configs import ALTER_CONFIGS
from millrace.handlers.api_versions import api_versions
from millrace.handlers.create_partitions import CREATE_PARTITIONS
from millrace.handlers.create_topics import CREATE_TOPICS
from millrace.handlers.delete_topics import DELETE_TOPICS
from millrace.handlers.describe_configs import DESCRIBE_CONFIGS
from millrace.handlers.fetch import FETCH
from millrace.handlers.find_coordinator import FIND_COORDINATOR
from millrace.handlers.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from millrace.handlers.init_producer_id import INIT_PRODUCER_ID
from millrace.handlers.list_offsets import LIST_OFFSETS
from millrace.handlers.metadata import metadata
from millrace.handlers.offset_fetch import OFFSET_FETCH
from millrace.handlers.produce import PRODUCE
from millrace.handlers.table import Api, Handlers

__all__ = ["Api", "Handlers", "kafka_apis"]


def kafka_apis(private: Iterable[Api] = ()) -> list[Api]:
    """Every API a broker serves; `private` ones, such as MirrorAppend, join here."""
    apis = [
        PRODUCE, FETCH, LIST_OFFSETS, metadata(), OFFSET_FETCH, FIND_COORDINATOR, CREATE_TOPICS,
        DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS,
        CREATE_PARTITIONS, *private,
    ]  # fmt: skip
    return [*apis, api_versions(apis)]
