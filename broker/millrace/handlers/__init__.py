"""The APIs of the Kafka protocol, a file per family: from requests to what the broker does, and back."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.groups import Groups
from millrace.handlers.api_versions import api_versions
from millrace.handlers.configs import CONFIG_APIS
from millrace.handlers.describe_log_dirs import DESCRIBE_LOG_DIRS
from millrace.handlers.fetch import FETCH
from millrace.handlers.group_admin import group_admin_apis
from millrace.handlers.group_membership import group_membership_apis
from millrace.handlers.init_producer_id import INIT_PRODUCER_ID
from millrace.handlers.metadata import metadata
from millrace.handlers.offsets import LIST_OFFSETS, group_offset_apis
from millrace.handlers.produce import PRODUCE
from millrace.handlers.table import Api, Handlers
from millrace.handlers.topics import TOPIC_APIS

__all__ = ["Api", "Handlers", "group_apis", "kafka_apis"]


def kafka_apis(more: Iterable[Api] = ()) -> list[Api]:
    """Every API a broker serves; `more` are those that stand on more than the broker: groups, the mirror."""
    one_each = [PRODUCE, FETCH, LIST_OFFSETS, metadata(), INIT_PRODUCER_ID, DESCRIBE_LOG_DIRS]
    apis = [*one_each, *TOPIC_APIS, *CONFIG_APIS, *more]
    return [*apis, api_versions(apis)]


def group_apis(groups: Groups) -> list[Api]:
    """The APIs of consumer groups."""
    return [*group_membership_apis(groups), *group_offset_apis(groups), *group_admin_apis(groups)]
