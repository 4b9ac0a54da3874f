"""A real MirrorMaker 2, as a process of its own, from the jars that `tests.peers.maven` fetched."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from millrace.coordination.embedded import find_java
from tests.peers import maven
from tests.support import start_for_the_test_run

POM = Path(__file__).with_name("mirrormaker.pom.xml")
ONE_BROKER = {
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
}
"""What a cluster of one broker needs: it cannot hold the three replicas that these topics have by default."""


def properties_of(origins: Mapping[str, str], target: str, topics: str) -> dict[str, str]:
    """What docs/mirror.md has a company's own MirrorMaker say; the rest is for one broker, and haste.

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


class MirrorMaker:
    """A dedicated MirrorMaker that fills the cluster `target`; `folder` keeps its properties and its log.

    It runs when this is made, and ends with the test run or `kill`.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        properties: Mapping[str, str],
        *,
        java_options: Sequence[str] = ("-Xmx512M",),
    ) -> None:
        """NoMaven when its jars cannot be fetched."""
        folder.mkdir(parents=True, exist_ok=True)
        file, self.log = folder / "mm2.properties", folder / "mm2.log"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self._command = [
            find_java(),
            *java_options,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            maven.class_path(POM),
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(file),
            "--clusters",
            target,
        ]
        self.start()

    def start(self) -> None:
        """Start it, again after `kill`."""
        with self.log.open("ab") as log:
            self.process = start_for_the_test_run(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> MirrorMaker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
