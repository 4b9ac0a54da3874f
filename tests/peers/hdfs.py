"""A real HDFS: one NameNode and some DataNodes, each a Java process of its own on 127.0.0.1.

They run from the jars that `tests.peers.maven` fetched, keep their ports and data over restarts, and end by
their own id, and with the test run. What is asked of them is asked of their own web pages (`/jmx`), so that
no Hadoop client is needed here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from millrace.zookeeper.embedded import find_java
from tests.brokers import free_port
from tests.peers.maven import class_path
from tests.support import start_for_the_test_run, wait_until

POM = Path(__file__).with_name("hdfs.pom.xml")
START_TIMEOUT_S = 90.0
_SERVER = "org.apache.hadoop.hdfs.server"
# One compiler tier and the simplest collector: a short life is mostly its start.
_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss512k")
_LOG4J = """log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


@dataclass(slots=True)
class HdfsProcess:
    """One server of HDFS: how to start it, where its words go, where its web page is."""

    name: str
    folder: Path
    web: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def start(self) -> None:
        """Start it, again after `kill`, on the same ports and data; `Hdfs.wait_until_ready` waits for it."""
        assert self.process is None, f"{self.name} is running"
        with open(self.folder / "log", "ab") as log:
            self.process = start_for_the_test_run(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; nothing when it is not running."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def metrics(self, beans: str) -> dict[str, Any]:
        """Return the matching beans of `/jmx` as one dict; {} while it does not answer."""
        if self.process is not None and self.process.poll() is not None:
            words = (self.folder / "log").read_text(errors="replace")[-3000:]
            raise AssertionError(f"{self.name} ended with exit code {self.process.returncode}:\n{words}")
        try:
            with urllib.request.urlopen(f"http://{self.web}/jmx?qry={beans}", timeout=5) as answer:
                found: list[dict[str, Any]] = json.load(answer)["beans"]
        except (OSError, ValueError, urllib.error.URLError):
            return {}
        return {key: value for bean in found for key, value in bean.items()}


class Hdfs:
    """A NameNode and `datanodes` DataNodes; `settings` are added to its hdfs-site.xml. Ready when made."""

    def __init__(
        self,
        folder: Path,
        *,
        datanodes: int = 1,
        replication: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        web = f"127.0.0.1:{free_port()}"
        self._settings = {
            "fs.defaultFS": self.uri,
            "dfs.replication": str(replication),
            "dfs.namenode.rpc-address": self.address,
            "dfs.namenode.http-address": web,
            "dfs.namenode.name.dir": f"file://{folder}/namenode/data",
            "dfs.namenode.safemode.extension": "0",
            # A DataNode that is silent for eleven seconds is dead; by default that takes ten minutes.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "500",
            "dfs.namenode.redundancy.interval.seconds": "1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            **(settings or {}),
        }
        self.namenode = self._server("namenode", "namenode.NameNode", web, self._settings, heap_mb=128)
        self.datanodes = [self._datanode(f"datanode{number}") for number in range(1, datanodes + 1)]
        self._format()
        self.start()

    @property
    def uri(self) -> str:
        """`hdfs://127.0.0.1:PORT`."""
        return f"hdfs://{self.address}"

    def start(self) -> None:
        """Start whatever is not running, and wait until it is ready."""
        for server in (self.namenode, *self.datanodes):
            if server.process is None:
                server.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the NameNode is out of safe mode and knows every DataNode that runs."""
        wait_until("HDFS is ready", self._ready, timeout_s=START_TIMEOUT_S)

    def close(self) -> None:
        """SIGKILL to all of them."""
        for server in (*self.datanodes, self.namenode):
            server.kill()

    def __enter__(self) -> Hdfs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def live_datanodes(self) -> int:
        """DataNodes the NameNode hears of."""
        state = self.namenode.metrics("Hadoop:service=NameNode,name=FSNamesystemState")
        return int(state.get("NumLiveDataNodes", 0))

    def synced_files(self) -> int:
        """Files and folders that the running DataNodes have put on disk with fsync since they started."""
        beans = "Hadoop:service=DataNode,name=DataNodeActivity-*"
        return sum(int(node.metrics(beans).get("FsyncCount", 0)) for node in self.datanodes if node.process)

    def _ready(self) -> bool:
        info = self.namenode.metrics("Hadoop:service=NameNode,name=NameNodeInfo")
        running = [node for node in self.datanodes if node.process is not None]
        return (
            info.get("Safemode") == ""
            and all(_serves(node) for node in running)
            and self.live_datanodes() >= len(running)
        )

    def _datanode(self, name: str) -> HdfsProcess:
        web = f"127.0.0.1:{free_port()}"
        own = {
            "dfs.datanode.data.dir": f"file://{self.folder}/{name}/data",
            "dfs.datanode.address": f"127.0.0.1:{free_port()}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{free_port()}",
            "dfs.datanode.http.address": web,
            "dfs.datanode.hostname": "127.0.0.1",
        }
        return self._server(name, "datanode.DataNode", web, {**self._settings, **own}, heap_mb=96)

    def _server(
        self, name: str, main: str, web: str, settings: Mapping[str, str], *, heap_mb: int
    ) -> HdfsProcess:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("core-site.xml", "hdfs-site.xml"):
            (folder / file).write_text(site_xml(settings))
        (folder / "log4j.properties").write_text(_LOG4J)
        for pages in ("hdfs", "datanode"):
            # The jars have none; an empty folder will do: `/jmx` and the like are not among the pages.
            (folder / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        heap = [f"-Xmx{heap_mb}m", f"-Xms{heap_mb // 2}m", f"-Dhadoop.log.dir={folder}"]
        command = [find_java(), *heap, *_JAVA, "-cp", f"{folder}:{class_path(POM)}", f"{_SERVER}.{main}"]
        return HdfsProcess(name, folder, web, command)

    def _format(self) -> None:
        command = [*self.namenode.command, "-format", "-nonInteractive"]
        done = subprocess.run(command, capture_output=True, timeout=START_TIMEOUT_S, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-3000:]


def _serves(datanode: HdfsProcess) -> bool:
    """True once a DataNode is registered with its NameNode: one that was killed is believed alive a while."""
    info = datanode.metrics("Hadoop:service=DataNode,name=DataNodeInfo")
    return '"RUNNING"' in info.get("BPServiceActorInfo", "")


def site_xml(settings: Mapping[str, str]) -> str:
    """The settings as one of Hadoop's `*-site.xml` files."""
    lines = [
        f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
        for key, value in settings.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])
