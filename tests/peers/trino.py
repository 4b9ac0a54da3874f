"""A real Trino with its Iceberg connector: one Java process on 127.0.0.1, from Maven's central repository.

Its archive is unpacked whole, because its plugins are hard links to each other, and then loses the plugins
that no test needs.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.brokers import free_port
from tests.peers.maven import unpacked
from tests.support import start_for_the_test_run, wait_until

POM = Path(__file__).with_name("trino.pom.xml")
START_TIMEOUT_S = 300.0
MIN_JAVA = 24
JAVA_HOMES = Path("/usr/lib/jvm")
_JAVA = (
    *("-Xmx1200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256M"),
    *("-Djdk.attach.allowAttachSelf=true", "--add-modules=jdk.incubator.vector"),
    *("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"),
)
_UNWANTED = ("plugin/[!i]*", "plugin/ignite")


class TrinoError(AssertionError):
    """Trino's refusal of a query, in its own words."""


def find_java() -> Path | None:
    """Return a Java that runs Trino, or None."""
    for release in sorted(JAVA_HOMES.glob("*/release")):
        stated = re.search(r'JAVA_VERSION="(\d+)', release.read_text())
        if stated and int(stated[1]) >= MIN_JAVA:
            return release.with_name("bin") / "java"
    return None


class Trino:
    """One server with the given catalogs of its Iceberg connector, ready when made."""

    def __init__(self, folder: Path, catalogs: Mapping[str, Mapping[str, str]]) -> None:
        self.folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"
        java = find_java()
        assert java, f"no Java {MIN_JAVA} in {JAVA_HOMES}"
        home = unpacked(POM, *_UNWANTED)
        (folder / "catalog").mkdir()
        for name, settings in catalogs.items():
            _write(folder / "catalog" / f"{name}.properties", {"connector.name": "iceberg", **settings})
        config = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": self._url.rpartition(":")[2],
            "discovery.uri": self._url,
            "query.max-memory-per-node": "256MB",
            "memory.heap-headroom-per-node": "200MB",
        }
        _write(folder / "config.properties", config)
        _write(folder / "log.properties", {"": "WARN"})
        node = {
            "node.environment": "test",
            "node.id": "one",
            "node.data-dir": f"{folder}/data",
            "node.bind-ip": "127.0.0.1",
            "node.internal-address": "127.0.0.1",
            "config": f"{folder}/config.properties",
            "log.levels-file": f"{folder}/log.properties",
            "catalog.config-dir": f"{folder}/catalog",
            "plugin.dir": f"{home}/plugin",
        }
        options = [f"-D{name}={value}" for name, value in node.items()]
        with open(folder / "log", "ab") as log:
            self._process = start_for_the_test_run(
                [str(java), *_JAVA, "-cp", f"{home}/lib/*", *options, "io.trino.server.TrinoServer"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until("Trino serves", self._serves, timeout_s=START_TIMEOUT_S)

    def __call__(self, query: str) -> list[list[Any]]:
        """The rows of the answer; TrinoError when it is none."""
        headers, rows = {"X-Trino-User": "test", "X-Trino-Time-Zone": "UTC"}, list[list[Any]]()
        with httpx.Client(headers=headers, timeout=60) as client:
            answer = client.post(f"{self._url}/v1/statement", content=query).raise_for_status().json()
            while True:
                rows += answer.get("data", [])
                if "error" in answer:
                    raise TrinoError(answer["error"]["message"])
                if "nextUri" not in answer:
                    return rows
                answer = client.get(answer["nextUri"]).raise_for_status().json()

    def close(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def __enter__(self) -> Trino:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serves(self) -> bool:
        if self._process.poll() is not None:
            words = (self.folder / "log").read_text(errors="replace")[-3000:]
            raise AssertionError(f"Trino ended with exit code {self._process.returncode}:\n{words}")
        try:
            return httpx.get(f"{self._url}/v1/info", timeout=5).json()["starting"] is False
        except (httpx.HTTPError, KeyError, ValueError):
            return False


def _write(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
