"""The APIs of the Kafka protocol, a file per family: from requests to what the broker does, and back."""

from __future__ import annotations

from typing import Any

from millrace.handlers import (
    acls,
    cluster,
    configs,
    group_admin,
    group_membership,
    mirror,
    offsets,
    quotas,
    reassignments,
    records,
    replicas,
    sasl,
    topics,
    users,
)
from millrace.handlers.fetch import FETCH
from millrace.handlers.metadata import api_versions, metadata
from millrace.handlers.produce import PRODUCE, init_producer_id
from millrace.handlers.table import Api, Handlers, Services

__all__ = ["Api", "Handlers", "Services", "all_apis"]


def all_apis() -> list[Api[Any]]:
    families = (
        topics,
        records,
        cluster,
        configs,
        offsets,
        group_membership,
        group_admin,
        mirror,
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
    ]
    return [*apis, api_versions(apis)]
