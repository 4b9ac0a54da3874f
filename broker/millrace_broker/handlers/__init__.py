"""The APIs of the Kafka protocol, a file per family: from requests to what the broker does, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millrace_broker.handlers import (
    acls,
    cluster,
    configs,
    group_admin,
    group_membership,
    offsets,
    quotas,
    reassignments,
    records,
    replicas,
    sasl,
    topics,
    users,
)
from millrace_broker.handlers.fetch import FETCH
from millrace_broker.handlers.metadata import api_versions, metadata
from millrace_broker.handlers.produce import PRODUCE, init_producer_id
from millrace_broker.handlers.table import Api, Handlers, Services

__all__ = ["Api", "Handlers", "Services", "all_apis"]


def all_apis(guests: Iterable[Api[Any]] = ()) -> list[Api[Any]]:
    """Return the broker's own APIs and those of its guests; ApiVersions lists them."""
    families = (
        topics,
        records,
        cluster,
        configs,
        offsets,
        group_membership,
        group_admin,
        replicas,
        reassignments,
        sasl,
        acls,
        users,
        quotas,
    )
    apis: list[Api[Any]] = [
        PRODUCE,
        FETCH,
        metadata(),
        init_producer_id,
        *(api for family in families for api in family.APIS),
        *guests,
    ]
    return [*apis, api_versions(apis)]
