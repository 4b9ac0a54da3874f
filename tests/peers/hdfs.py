"""A real HDFS: one NameNode or two, and some DataNodes, each a Java process of its own on 127.0.0.1.

They run from the jars that `tests.peers.maven` fetched, keep their ports and data over restarts, and end by
their own id, and with the test run. What is asked of them is asked of their own web pages (`/jmx`), so that
no Hadoop client is needed here.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from millrace.zookeeper.embedded import find_java
from tests.brokers import free_port
from tests.peers.kdc import HOST
from tests.peers.maven import class_path
from tests.peers.secured import SUPERUSER, Security
from tests.support import start_for_the_test_run, wait_until

POM = Path(__file__).with_name("hdfs.pom.xml")
START_TIMEOUT_S = 180.0
_SERVER = "org.apache.hadoop.hdfs.server"
# One compiler tier and the simplest collector: a short life is mostly its start.
JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss512k")
# KerberosUtil reads a class of the JDK that is not open.
SECURE_JAVA = ("-Djava.net.preferIPv4Stack=true", "--add-opens=java.base/java.lang=ALL-UNNAMED")
NAMESERVICE = "pair"
"""Name of two NameNodes."""
LOG4J = """log4j.rootLogger=WARN, console
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
    open: Callable[[str], bytes]
    """Returns a page of its web server, whose URL `web` begins with."""
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
            found: list[dict[str, Any]] = json.loads(self.open(f"/jmx?qry={beans}"))["beans"]
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        return {key: value for bean in found for key, value in bean.items()}


class Hdfs:
    """A NameNode and `datanodes` DataNodes; `settings` are added to its hdfs-site.xml. Ready when made.

    With `security` servers ask for Kerberos and TLS, and their name is localhost. Two NameNodes share their
    edits in a folder; `fail_over` makes the other one active.
    """

    def __init__(
        self,
        folder: Path,
        *,
        datanodes: int = 1,
        replication: int = 1,
        namenodes: int = 1,
        security: Security | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self._security = folder, security
        self._host = HOST if security else "127.0.0.1"
        rpc, web, plain = ([self._free_address() for _ in range(namenodes)] for _ in range(3))
        self.address = rpc[0] if namenodes == 1 else NAMESERVICE
        self.settings = {
            "fs.defaultFS": self.uri,
            "dfs.replication": str(replication),
            "dfs.namenode.safemode.extension": "0",
            # A DataNode that is silent for eleven seconds is dead; by default that takes ten minutes.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "500",
            "dfs.namenode.redundancy.interval.seconds": "1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            **({**security.core(), **security.hdfs()} if security else {}),
            **(settings or {}),
        }
        names = [f"namenode{number}" for number in range(1, namenodes + 1)]
        if namenodes > 1:
            self.settings |= _ha_settings(folder, names)
        kinds = ("https", "http") if security else ("http", "https")
        for name, *addresses in zip(names, rpc, web, plain, strict=True):
            suffix = f".{NAMESERVICE}.{name}" if namenodes > 1 else ""
            for kind, address in zip(("rpc", *kinds), addresses, strict=True):
                self.settings[f"dfs.namenode.{kind}-address{suffix}"] = address
        self.namenodes = [self._namenode(*each) for each in zip(names, web, strict=True)]
        self.datanodes = [self._datanode(f"datanode{number}") for number in range(1, datanodes + 1)]
        self._format()
        self.start()

    @property
    def namenode(self) -> HdfsProcess:
        """The first NameNode."""
        return self.namenodes[0]

    @property
    def uri(self) -> str:
        """`hdfs://127.0.0.1:PORT`, or the nameservice of two NameNodes."""
        return f"hdfs://{self.address}"

    def start(self) -> None:
        """Start whatever is not running, and wait until it is ready."""
        for server in (*self.namenodes, *self.datanodes):
            if server.process is None:
                server.start()
        if len(self.namenodes) > 1:
            wait_until("a NameNode is active", self._has_active, timeout_s=START_TIMEOUT_S)
        self.wait_until_ready()

    def fail_over(self) -> None:
        """Kill the active NameNode, and make the other one active."""
        (active,) = [node for node in self.namenodes if _state(node) == "active"]
        active.kill()
        (other,) = [node for node in self.namenodes if node is not active]
        self._make_active(other)

    def _has_active(self) -> bool:
        states = {node.name: _state(node) for node in self.namenodes}
        if "active" in states.values():
            return True
        if set(states.values()) == {"standby"}:
            self._make_active(self.namenode)
        return False

    def _make_active(self, node: HdfsProcess) -> None:
        # By force: else it asks the other NameNode first, which may be dead.
        self.tool("DFSHAAdmin", "-ns", NAMESERVICE, "-transitionToActive", "--forceactive", node.name)

    def tool(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Run one of HDFS's tools, such as DFSAdmin, as the servers' principal or with other variables."""
        java = [*self.datanodes[0].command[:-1], f"org.apache.hadoop.hdfs.tools.{name}", *arguments]
        if env is None and self._security:
            env = {"KRB5CCNAME": str(self.folder / "tool.cache")}
            principal = f"{SUPERUSER}/{HOST}"
            self._security.kdc.ticket(self._security.keytab, principal, Path(env["KRB5CCNAME"]))
        environment = {**os.environ, **(env or {})}
        done = subprocess.run(
            java, env=environment, capture_output=True, timeout=START_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-3000:]

    def wait_until_ready(self) -> None:
        """Wait until the NameNode is out of safe mode and knows every DataNode that runs."""
        wait_until("HDFS is ready", self._ready, timeout_s=START_TIMEOUT_S)

    def close(self) -> None:
        """SIGKILL to all of them."""
        for server in (*self.datanodes, *self.namenodes):
            server.kill()

    def __enter__(self) -> Hdfs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def live_datanodes(self) -> int:
        """DataNodes that every running NameNode hears of."""
        beans = "Hadoop:service=NameNode,name=FSNamesystemState"
        running = [node for node in self.namenodes if node.process is not None]
        return min(int(node.metrics(beans).get("NumLiveDataNodes", 0)) for node in running)

    def synced_files(self) -> int:
        """Files and folders that the running DataNodes have put on disk with fsync since they started."""
        beans = "Hadoop:service=DataNode,name=DataNodeActivity-*"
        return sum(int(node.metrics(beans).get("FsyncCount", 0)) for node in self.datanodes if node.process)

    def _ready(self) -> bool:
        beans = "Hadoop:service=NameNode,name=NameNodeInfo"
        awake = [node for node in self.namenodes if node.process is not None]
        running = [node for node in self.datanodes if node.process is not None]
        return (
            all(node.metrics(beans).get("Safemode") == "" for node in awake)
            and all(_serves(node) for node in running)
            and self.live_datanodes() >= len(running)
        )

    def _free_address(self) -> str:
        return f"{self._host}:{free_port()}"

    def _namenode(self, name: str, web: str) -> HdfsProcess:
        own = {"dfs.namenode.name.dir": f"file://{self.folder}/{name}/data"}
        if NAMESERVICE in self.settings.get("dfs.nameservices", ""):
            own["dfs.ha.namenode.id"] = name
        return self._server(name, "namenode.NameNode", web, {**self.settings, **own}, heap_mb=128)

    def _datanode(self, name: str) -> HdfsProcess:
        web = self._free_address()
        kinds = ("https", "http") if self._security else ("http", "https")
        own = {
            "dfs.datanode.data.dir": f"file://{self.folder}/{name}/data",
            "dfs.datanode.address": self._free_address(),
            "dfs.datanode.ipc.address": self._free_address(),
            f"dfs.datanode.{kinds[0]}.address": web,
            f"dfs.datanode.{kinds[1]}.address": self._free_address(),
            "dfs.datanode.hostname": self._host,
        }
        return self._server(name, "datanode.DataNode", web, {**self.settings, **own}, heap_mb=96)

    def _server(
        self, name: str, main: str, web: str, settings: Mapping[str, str], *, heap_mb: int
    ) -> HdfsProcess:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        files = {"core-site.xml": settings, "hdfs-site.xml": settings}
        for file, content in (files | (self._security.ssl_files() if self._security else {})).items():
            (folder / file).write_text(site_xml(content))
        (folder / "log4j.properties").write_text(LOG4J)
        for pages in ("hdfs", "datanode"):
            # The jars have none; an empty folder will do: `/jmx` and the like are not among the pages.
            (folder / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        heap = [f"-Xmx{heap_mb}m", f"-Xms{heap_mb // 2}m", f"-Dhadoop.log.dir={folder}"]
        secure = [self._security.java, *SECURE_JAVA] if self._security else []
        options = [*heap, *JAVA, *secure]
        command = [find_java(), *options, "-cp", f"{folder}:{class_path(POM)}", f"{_SERVER}.{main}"]
        return HdfsProcess(name, folder, web, command, partial(open_page, self._security, web))

    def _format(self) -> None:
        command = [*self.namenode.command, "-format", "-nonInteractive"]
        done = subprocess.run(command, capture_output=True, timeout=START_TIMEOUT_S, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-3000:]
        for standby in self.namenodes[1:]:
            shutil.copytree(self.namenode.folder / "data", standby.folder / "data")


def open_page(security: Security | None, web: str, path: str) -> bytes:
    """Return a page of a server's web address."""
    if security:
        return security.open(f"https://{web}{path}")
    with urllib.request.urlopen(f"http://{web}{path}", timeout=5) as answer:
        content: bytes = answer.read()
        return content


def _ha_settings(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {
        "dfs.nameservices": NAMESERVICE,
        f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(names),
        "dfs.namenode.shared.edits.dir": f"file://{folder}/shared-edits",
        "dfs.ha.tail-edits.period": "1",
        f"dfs.client.failover.proxy.provider.{NAMESERVICE}": "org.apache.hadoop.hdfs.server.namenode.ha."
        "ConfiguredFailoverProxyProvider",
        # A DataNode's own client finds the active NameNode anew for every file.
        "dfs.client.failover.random.order": "false",
        "dfs.client.failover.sleep.base.millis": "50",
        "dfs.client.failover.sleep.max.millis": "500",
        # Whoever asks to fail over has killed the other one.
        "dfs.ha.fencing.methods": "shell(/bin/true)",
    }


def _state(namenode: HdfsProcess) -> str:
    status = namenode.metrics("Hadoop:service=NameNode,name=NameNodeStatus") if namenode.process else {}
    return str(status.get("State", ""))


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
