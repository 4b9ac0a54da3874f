"""A real Kafka Connect in standalone mode, as a process, from the jars of `mirrormaker.pom.xml`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from millrace.coordination.embedded import find_java
from tests.peers import maven
from tests.peers.mirrormaker import POM
from tests.support import start_for_the_test_run

WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "500",
    "listeners": "http://127.0.0.1:0",
    "plugin.discovery": "only_scan",
}


class Connect:
    """A standalone worker and its connectors; it ends with the test run or `kill`."""

    def __init__(self, folder: Path, bootstrap: str, connectors: Mapping[str, Mapping[str, str]]) -> None:
        """NoMaven when its jars cannot be fetched."""
        folder.mkdir(parents=True, exist_ok=True)
        worker = {
            **WORKER,
            "bootstrap.servers": bootstrap,
            "offset.storage.file.filename": str(folder / "offsets"),
        }
        files = [_written(folder / "worker.properties", worker)]
        for name, settings in connectors.items():
            files.append(_written(folder / f"{name}.properties", {"name": name, **settings}))
        self.log = folder / "connect.log"
        self._command = [
            find_java(),
            "-Xmx512M",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            maven.class_path(POM),
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *files,
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

    def __enter__(self) -> Connect:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _written(file: Path, properties: Mapping[str, str]) -> str:
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(file)
