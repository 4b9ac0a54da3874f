"""A real YARN: a ResourceManager and some NodeManagers, each a Java process of its own on 127.0.0.1.

They run from the jars that `tests.peers.maven` fetched, keep their ports over restarts, and end by their own
id, and with the test run. Containers are processes of the same user; whoever their NodeManager is, they are
found by their working folder. The nodes have no Hadoop distribution: an application brings its classes.

With `security` every server asks for Kerberos, and its web address for TLS, too. Containers are processes of
this user all the same (DefaultContainerExecutor), but have tokens alone: neither ticket nor keytab.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from millrace.zookeeper.embedded import find_java
from millrace_spark.jobs.submit import spark_home
from tests.brokers import free_port
from tests.peers.hdfs import JAVA, LOG4J, SECURE_JAVA, HdfsProcess, open_page, site_xml
from tests.peers.kdc import HOST
from tests.peers.maven import class_path
from tests.peers.secured import Security
from tests.peers.spark_cluster import CONF
from tests.support import wait_until

POM = Path(__file__).with_name("yarn.pom.xml")
START_TIMEOUT_S = 400.0
_SERVER = "org.apache.hadoop.yarn.server"
_LOST_AFTER_MS = "20000"
"""Silence after which a node is lost. By default that takes ten minutes."""
DRIVER, EXECUTOR = b"ApplicationMaster", b"YarnCoarseGrainedExecutorBackend"
PYTHON = b"driver.py"


class Yarn:
    """Ready when made. `default_fs` holds what Spark stages; `hdfs` are the settings of its client.

    With `recovery` a ResourceManager that restarts knows its applications, and goes on with them.
    """

    def __init__(
        self,
        folder: Path,
        default_fs: str,
        *,
        nodes: int = 1,
        recovery: bool = False,
        security: Security | None = None,
        hdfs: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.conf, self._security = folder, folder / "conf", security
        self._host = HOST if security else "127.0.0.1"
        self._core = {
            **(hdfs or {}),
            **(security.core() if security else {}),
            "fs.defaultFS": default_fs,
            "hadoop.tmp.dir": str(folder / "tmp"),
        }
        ports = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        self._web = self._free_address()
        self._settings = {
            "yarn.resourcemanager.hostname": self._host,
            **{f"yarn.resourcemanager.{name}": self._free_address() for name in ports},
            f"yarn.resourcemanager.{self._webapp}": self._web,
            "yarn.resourcemanager.recovery.enabled": str(recovery).lower(),
            "yarn.resourcemanager.store.class": (
                f"{_SERVER}.resourcemanager.recovery.FileSystemRMStateStore"
            ),
            "yarn.resourcemanager.fs.state-store.uri": (folder / "state").as_uri(),
            "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nm.liveness-monitor.expiry-interval-ms": _LOST_AFTER_MS,
            "yarn.application.classpath": " ",
            **(security.yarn() if security else {}),
        }
        self.resourcemanager = self._server(
            "resourcemanager", "resourcemanager.ResourceManager", self._web, self._settings
        )
        self.nodemanagers = [self._node(f"nodemanager{number}") for number in range(1, nodes + 1)]
        self._write_sites(self.conf, self._settings)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def conf_of_commands(self) -> dict[str, str]:
        """Settings for small executors and a small driver, without an upload of Spark's jars."""
        return {
            **CONF,
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.yarn.am.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.instances": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        }

    @property
    def cluster_conf(self) -> dict[str, str]:
        """The same, and the driver on the cluster."""
        return {**self.conf_of_commands, "spark.submit.deployMode": "cluster"}

    @property
    def options(self) -> list[str]:
        """Options of a command with its driver beside it."""
        return _options(self.conf_of_commands)

    @property
    def cluster_mode(self) -> list[str]:
        """Options of a command with its driver on the cluster."""
        return _options(self.cluster_conf)

    def start(self) -> None:
        """Start what is not running, and wait until every node is registered."""
        for server in (self.resourcemanager, *self.nodemanagers):
            if server.process is None:
                server.start()
        wait_until("YARN is ready", self._ready, timeout_s=START_TIMEOUT_S)

    def close(self) -> None:
        """SIGKILL to the servers and to every container."""
        for server in (*self.nodemanagers, self.resourcemanager):
            server.kill()
        for pid in self.containers(b""):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Yarn:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, path: str) -> Any:
        """Return the ResourceManager's answer below /ws/v1/cluster; {} while it does not answer."""
        with suppress(OSError, ValueError):
            return json.loads(self.resourcemanager.open(f"/ws/v1/cluster/{path}"))
        return {}

    def applications(self) -> list[dict[str, Any]]:
        """Every application that the ResourceManager knows, the oldest first."""
        found: list[dict[str, Any]] = (self.ask("apps").get("apps") or {}).get("app", [])
        return sorted(found, key=lambda each: str(each["id"]))

    def containers(self, word: bytes) -> list[int]:
        """Process ids, in containers of this YARN, of commands with a word: DRIVER, EXECUTOR, PYTHON.

        Shells of containers do not count.
        """
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                inside = (process / "cwd").readlink().is_relative_to(self.folder)
                command = (process / "cmdline").read_bytes()
                if inside and word in command and not command.startswith((b"/bin/bash", b"bash")):
                    found.append(int(process.name))
        return found

    def kill_containers(self, word: bytes) -> int:
        """SIGKILL to the containers' processes with a word; how many there were."""
        found = self.containers(word)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def _ready(self) -> bool:
        running = [node for node in self.nodemanagers if node.process is not None]
        metrics = self.ask("metrics").get("clusterMetrics", {})
        for server in (self.resourcemanager, *running):
            server.metrics("java.lang:type=Runtime")  # fails with the log if the server has ended
        return bool(metrics.get("activeNodes", 0) >= len(running))

    def _node(self, name: str) -> HdfsProcess:
        web, folder = self._free_address(), self.folder / name
        own = {
            "yarn.nodemanager.hostname": self._host,
            "yarn.nodemanager.bind-host": "127.0.0.1",
            "yarn.nodemanager.address": self._free_address(),
            "yarn.nodemanager.localizer.address": self._free_address(),
            "yarn.nodemanager.collector-service.address": self._free_address(),
            f"yarn.nodemanager.{self._webapp}": web,
            "yarn.nodemanager.resource.memory-mb": "6144",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            # Java finds the KDC by JAVA_TOOL_OPTIONS.
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,JAVA_TOOL_OPTIONS",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",  # a test looks for secrets in what is left
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        }
        return self._server(name, "nodemanager.NodeManager", web, {**self._settings, **own})

    def _server(self, name: str, main: str, web: str, settings: Mapping[str, str]) -> HdfsProcess:
        folder = self.folder / name
        self._write_sites(folder, settings)
        (folder / "log4j.properties").write_text(LOG4J)
        # Without a file of queues the scheduler has none.
        queues = {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
        }
        (folder / "capacity-scheduler.xml").write_text(site_xml(queues))
        for pages in ("cluster", "node"):
            (folder / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        java = find_java()
        # The containers' scripts need JAVA_HOME and USER.
        command = ["env", f"JAVA_HOME={Path(java).resolve().parents[1]}", "USER=root", java]
        command += ["-Xmx256m", *JAVA, *SECURE_JAVA, *([self._security.java] if self._security else ())]
        command += [f"-Dhadoop.log.dir={folder}", "-cp", f"{folder}:{class_path(POM)}", f"{_SERVER}.{main}"]
        return HdfsProcess(name, folder, web, command, partial(open_page, self._security, web))

    def _write_sites(self, folder: Path, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = {"core-site.xml": self._core, "hdfs-site.xml": self._core, "yarn-site.xml": settings}
        for file, content in (files | (self._security.ssl_files() if self._security else {})).items():
            (folder / file).write_text(site_xml(content))

    @property
    def _webapp(self) -> str:
        return "webapp.https.address" if self._security else "webapp.address"

    def _free_address(self) -> str:
        return f"{self._host}:{free_port()}"


def _options(conf: Mapping[str, str]) -> list[str]:
    return ["--master", "yarn", *(w for pair in conf.items() for w in ("--conf", "=".join(pair)))]
