"""A real Hive Metastore with Derby, one Java process: 2.3 out of PySpark's jars, 3.1 out of Hive's.

It listens on all addresses, so it runs in a network namespace of its own, and is reached at a port of
127.0.0.1 by `forward.py`. It keeps its port and data over restarts, and ends by its own id, and with the test
run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from hive_metastore.ThriftHiveMetastore import Client
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from millrace.zookeeper.embedded import find_java
from tests.brokers import free_port
from tests.peers.hdfs import site_xml
from tests.peers.maven import jars, unpacked
from tests.peers.one_process import OneProcess
from tests.support import start_for_the_test_run, wait_until

START_TIMEOUT_S = 300.0
_SCRIPT = 'ip link set lo up && { "$1" -I "$2" "$3" "$4" & } && shift 4 && exec "$@"'
_LOG4J = """status=error
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
"""


PYSPARK_JARS = Path(pyspark.__file__).with_name("jars")
RELEASES = {"2.3": None, "3.1": "tools.MetastoreSchemaTool", "4.0": "tools.schematool.MetastoreSchemaTool"}
"""Release -> the class of its `schematool`, which PySpark's jars lack."""

HADOOP = ("hadoop-client", "commons", "gson", "jcl-over-slf4j", "slf4j-api")
"""PySpark's jars that Hive's own archive lacks: Hadoop's client, and what it needs."""


class Metastore(OneProcess):
    """One metastore, ready when made; `settings` are added to its hive-site.xml."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, release: str = "2.3") -> None:
        self.folder, self.release = folder, release
        self.port, self._inner = free_port(), free_port()
        defaults = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "datanucleus.connectionPoolingType": "NONE",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file://{folder}/warehouse",
            "hive.async.log.enabled": "false",
            "hive.metastore.server.min.threads": "2",
            # Of releases after 2.3: by default classes of a whole Hive.
            "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
            "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
        }
        self.settings = {**defaults, **(settings or {})}
        (folder / "core-site.xml").write_text(site_xml({"hadoop.security.authentication": "simple"}))
        (folder / "log4j2.properties").write_text(_LOG4J)
        self._write_settings()
        tool = RELEASES[release]
        if tool is None:
            self._class_path = f"{folder}:{PYSPARK_JARS}/*"
            self._make_lock_tables()
        else:
            pom = Path(__file__).with_name(f"metastore-{release.replace('.', '-')}.pom.xml")
            home = unpacked(pom)
            hadoop = ":".join(str(jar) for name in HADOOP for jar in PYSPARK_JARS.glob(f"{name}-*.jar"))
            self._class_path = f"{folder}:{home}/lib/*:{jars(pom)}/*:{hadoop}"
            self._make_tables(home, f"org.apache.hadoop.hive.metastore.{tool}")
        self.start()

    @property
    def uri(self) -> str:
        """`thrift://127.0.0.1:PORT`."""
        return f"thrift://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again after `kill`, on the same port and data; it serves when this returns."""
        assert self._process is None, "the metastore is running"
        self._write_settings()
        log4j = f"{self.folder}/log4j2.properties"
        java = [
            *(find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-Dhive.log4j.file={log4j}", f"-Dlog4j2.configurationFile={log4j}"),
            f"-Dderby.stream.error.file={self.folder}/derby.log",
            *("-cp", self._class_path, "org.apache.hadoop.hive.metastore.HiveMetaStore"),
            *("-p", str(self._inner)),
        ]
        namespace = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",))]
        with (
            socket.create_server(("127.0.0.1", self.port)) as listening,
            open(self.folder / "log", "ab") as log,
        ):
            forward = [sys.executable, str(Path(__file__).with_name("forward.py"))]
            arguments = [*forward, str(listening.fileno()), str(self._inner), *java]
            self._process = start_for_the_test_run(
                [*namespace, "sh", "-ec", _SCRIPT, "sh", *arguments],
                cwd=self.folder,
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until("the metastore serves", self._serves, timeout_s=START_TIMEOUT_S)

    def _write_settings(self) -> None:
        (self.folder / "hive-site.xml").write_text(site_xml(self.settings))

    def _serves(self) -> bool:
        self._check_runs("the metastore")
        transport = TBufferedTransport(TSocket("127.0.0.1", self.port))
        try:
            transport.open()
            return "default" in Client(TBinaryProtocol(transport)).get_all_databases()
        except (TException, OSError):
            return False
        finally:
            transport.close()

    def _make_tables(self, home: Path, tool: str) -> None:
        done = subprocess.run(
            [find_java(), "-cp", self._class_path, tool, "-dbType", "derby", "-initSchema"],
            env={**os.environ, "METASTORE_HOME": str(home)},
            cwd=self.folder,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-3000:]

    def _make_lock_tables(self) -> None:
        """Create the tables of locks, as Hive's `schematool` does: Hive creates all others by itself."""
        port, java = launch_gateway(
            classpath=self._class_path,
            javaopts=[f"-Dderby.stream.error.file={self.folder}/derby.log"],
            java_path=find_java(),
            die_on_exit=True,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            hive = gateway.jvm.org.apache.hadoop.hive
            hive.metastore.txn.TxnDbUtil.prepDb(hive.conf.HiveConf())
        finally:
            gateway.shutdown()
            java.communicate(timeout=30)  # Derby lets one process at a time into a database
