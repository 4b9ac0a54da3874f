"""Id of a Millrace cluster, as every Metadata answer states it, and the cluster's name within the id.

millrace-<name>-<32 hex digits>     drawn once, when the cluster's first broker starts
millrace-<32 hex digits>            without a name: from an earlier version of Millrace
"""

from __future__ import annotations

import re
import uuid

from millrace.errors import ConfigError
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX

_WITH_NAME = re.compile(rf"{BYTE_OFFSETS_PREFIX}(.+)-[0-9a-f]{{32}}")


class WrongCluster(ConfigError):
    """The brokers belong to a cluster with another name than the given one."""


def new_cluster_id(name: str) -> str:
    """Draw the id of a new cluster."""
    return f"{BYTE_OFFSETS_PREFIX}{name}-{uuid.uuid4().hex}"


def check_cluster(name: str, cluster_id: str | None, bootstrap: str) -> None:
    """Raise WrongCluster when the id of the brokers at `bootstrap` holds another name.

    An id without a name, such as that of an Apache Kafka, allows any name.
    """
    held = _WITH_NAME.fullmatch(cluster_id or "")
    if held is not None and held[1] != name:
        raise WrongCluster(
            f"{name}: the broker at {bootstrap} belongs to the cluster {held[1]}. Set cluster to {held[1]}."
        )
