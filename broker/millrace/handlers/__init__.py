"""One short file per API of the Kafka protocol: from bytes to what the broker does, and back."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.groups import Groups
from millrace.handlers.alter_configs import ALTER_CONFIGS
from millrace.handlers.api_versions import api_versions
from millrace.handlers.create_partitions import CREATE_PARTITIONS
from millrace.handlers.create_topics import CREATE_TOPICS
from millrace.handlers.delete_groups import delete_groups
from millrace.handlers.delete_topics import DELETE_TOPICS
from millrace.handlers.describe_configs import DESCRIBE_CONFIGS
from millrace.handlers.describe_groups import describe_groups
from millrace.handlers.describe_log_dirs import DESCRIBE_LOG_DIRS
from millrace.handlers.fetch import FETCH
from millrace.handlers.find_coordinator import find_coordinator
from millrace.handlers.heartbeat import heartbeat
from millrace.handlers.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from millrace.handlers.init_producer_id import INIT_PRODUCER_ID
from millrace.handlers.join_group import join_group
from millrace.handlers.leave_group import leave_group
from millrace.handlers.list_groups import list_groups
from millrace.handlers.list_offsets import LIST_OFFSETS
from millrace.handlers.metadata import metadata
from millrace.handlers.offset_commit import offset_commit
from millrace.handlers.offset_delete import offset_delete
from millrace.handlers.offset_fetch import offset_fetch
from millrace.handlers.produce import PRODUCE
from millrace.handlers.sync_group import sync_group
from millrace.handlers.table import Api, Handlers

__all__ = ["Api", "Handlers", "group_apis", "kafka_apis"]


def kafka_apis(more: Iterable[Api] = ()) -> list[Api]:
    """Every API a broker serves; `more` are those that stand on more than the broker: groups, the mirror."""
    apis = [
        PRODUCE, FETCH, LIST_OFFSETS, metadata(), CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID,
        DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, CREATE_PARTITIONS, DESCRIBE_LOG_DIRS,
        *more,
    ]  # fmt: skip
    return [*apis, api_versions(apis)]


def group_apis(groups: Groups) -> list[Api]:
    """The APIs of consumer groups."""
    build = (
        find_coordinator, join_group, sync_group, heartbeat, leave_group, offset_commit, offset_fetch,
        describe_groups, list_groups, delete_groups, offset_delete,
    )  # fmt: skip
    return [api(groups) for api in build]
