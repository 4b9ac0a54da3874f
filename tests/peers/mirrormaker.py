"""A real MirrorMaker 2, as a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.connect import ConnectProcess, write_properties

ONE_BROKER = {
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
}
"""Settings for a cluster of one broker, which cannot hold the default three replicas of these topics."""


def properties_of(origins: Mapping[str, str], target: str, topics: str) -> dict[str, str]:
    """Return the settings of docs/mirror.md for a company's MirrorMaker, and some for one broker and haste.

    It fills the cluster `offline` at `target`; `topics` is a pattern, beside that of the audit topics.
    """
    return {
        "clusters": ",".join([*origins, "offline"]),
        "offline.bootstrap.servers": target,
        **{f"{name}.bootstrap.servers": bootstrap for name, bootstrap in origins.items()},
        **{f"{name}->offline.enabled": "true" for name in origins},
        **{f"{name}.consumer.isolation.level": "read_committed" for name in origins},
        "topics": f"{topics}|audit|audit-counts",
        "offset-syncs.topic.location": "target",
        "offline.producer.max.request.size": str(8 << 20),
        "offset.flush.interval.ms": "1000",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "refresh.topics.interval.seconds": "1",
        "scheduled.rebalance.max.delay.ms": "0",
        **ONE_BROKER,
    }


class MirrorMaker(ConnectProcess):
    """A dedicated MirrorMaker that fills the cluster `target`; `folder` keeps its properties and its log."""

    def __init__(
        self,
        folder: Path,
        target: str,
        properties: Mapping[str, str],
        *,
        java_options: Sequence[str] = ("-Xmx512M",),
    ) -> None:
        file = write_properties(folder / "mm2.properties", properties)
        words = ["org.apache.kafka.connect.mirror.MirrorMaker", file, "--clusters", target]
        super().__init__(folder, words, java_options)
