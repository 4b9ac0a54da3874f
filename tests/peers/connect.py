"""Processes of a real Kafka Connect: a worker in standalone mode here, MirrorMaker 2 in `mirrormaker`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from millrace.zookeeper.embedded import find_java
from tests.peers import maven
from tests.support import start_for_the_test_run

POM = Path(__file__).with_name("connect.pom.xml")
WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "500",
    "listeners": "http://127.0.0.1:0",
    "plugin.discovery": "only_scan",
}


class ConnectProcess:
    """A process of Kafka Connect's jars, with its files in a folder.

    It runs when this is made, and ends with the test run or `kill`.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        java_options: Sequence[str] = ("-Xmx512M",),
        more_jars: Sequence[Path] = (),
    ) -> None:
        """Start the main class and arguments in `words`; NoMaven when the jars cannot be fetched."""
        self.log = folder / "connect.log"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        path = ":".join([maven.class_path(POM), *map(str, more_jars)])
        self._command = [find_java(), *java_options, quiet, "-cp", path, *words]
        self.start()

    def start(self) -> None:
        """Start it, again after `kill`."""
        with self.log.open("ab") as log:
            self.process = start_for_the_test_run(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def stop(self) -> None:
        """SIGTERM, and wait until it has closed its clients."""
        self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Connect(ConnectProcess):
    """A standalone worker and its connectors."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        connectors: Mapping[str, Mapping[str, str]],
        settings: Mapping[str, str] | None = None,
        more_jars: Sequence[Path] = (),
    ) -> None:
        """Start the connectors in a worker with further `settings`, and with jars on its class path."""
        worker = {
            **WORKER,
            **(settings or {}),
            "bootstrap.servers": bootstrap,
            "offset.storage.file.filename": str(folder / "offsets"),
        }
        named = {name: {"name": name, **settings} for name, settings in connectors.items()}
        files = [
            write_properties(folder / f"{name}.properties", properties)
            for name, properties in {"worker": worker, **named}.items()
        ]
        words = ["org.apache.kafka.connect.cli.ConnectStandalone", *files]
        super().__init__(folder, words, more_jars=more_jars)


def write_properties(file: Path, properties: Mapping[str, str]) -> str:
    """Write a file of properties, and its folder where it is missing; the file's path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(file)
