"""A real Apache Kafka: brokers in KRaft mode, and the Java tools that come with it.

Everything runs as plain Java processes on loopback addresses, from the jars that `tests.peers.maven` fetched;
they end by their own id, and with the test run. Which settings a comparison wants is its own business.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.zookeeper.embedded import find_java
from tests.brokers import free_port
from tests.peers.maven import class_path
from tests.support import start_for_the_test_run, wait_until

POM = Path(__file__).with_name("kafka.pom.xml")
START_TIMEOUT_S = 240.0
TOOL_TIMEOUT_S = 60.0
TOOLS = {
    "ConsoleProducer": "org.apache.kafka.tools.ConsoleProducer",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "TopicCommand": "org.apache.kafka.tools.TopicCommand",
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "AclCommand": "org.apache.kafka.tools.AclCommand",
    "GetOffsetShell": "org.apache.kafka.tools.GetOffsetShell",
    "DeleteRecordsCommand": "org.apache.kafka.tools.DeleteRecordsCommand",
    "ProducerPerformance": "org.apache.kafka.tools.ProducerPerformance",
    "ConsumerPerformance": "org.apache.kafka.tools.ConsumerPerformance",
    "StorageTool": "kafka.tools.StorageTool",
    "DumpLogSegments": "kafka.tools.DumpLogSegments",
    "ShareGroupCommand": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "ConsoleShareConsumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "StreamsGroupCommand": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    **{
        name: f"org.apache.kafka.tools.{name}"
        for name in (
            "BrokerApiVersionsCommand",
            "ClientMetricsCommand",
            "ClusterTool",
            "DelegationTokenCommand",
            "EndToEndLatency",
            "FeatureCommand",
            "GroupsCommand",
            "LeaderElectionCommand",
            "LogDirsCommand",
            "MetadataQuorumCommand",
            "ReplicaVerificationTool",
            "ShareConsumerPerformance",
            "StreamsResetter",
            "TransactionsCommand",
            "VerifiableConsumer",
            "VerifiableProducer",
            "VerifiableShareConsumer",
        )
    },
}
"""Classes that the scripts in Kafka's own `bin` folder run, by the name of the class."""

# A short run of a tool is mostly its start: one compiler tier and the simplest collector halve that.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def kafka_tool_command(
    name: str, *arguments: str, heap_mb: int = 256, java_options: Sequence[str] = _QUICK_START
) -> list[str]:
    """The command line that runs one of TOOLS: for a caller that wants the process itself."""
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [
        find_java(),
        f"-Xmx{heap_mb}m",
        *java_options,
        log,
        "-cp",
        class_path(POM),
        TOOLS[name],
        *arguments,
    ]


def kafka_tool(
    name: str,
    *arguments: str,
    stdin: bytes | None = None,
    timeout_s: float = TOOL_TIMEOUT_S,
    heap_mb: int = 256,
    java_options: Sequence[str] = _QUICK_START,
) -> subprocess.CompletedProcess[bytes]:
    """Run one of TOOLS to its end: exit code and output, nothing checked."""
    return subprocess.run(
        kafka_tool_command(name, *arguments, heap_mb=heap_mb, java_options=java_options),
        input=stdin or b"",
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


class KafkaBroker:
    """One broker that is its own controller; `folder` keeps its data and log over restarts.

    `settings` are added to its server.properties, `java_options` to its command line. Without an `address` it
    listens on a free port; `listeners` are more of them, as NAME://HOST:PORT. With `first` it joins that
    broker's cluster, and takes its controller, under a `node_id` of its own. Ready when made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        heap_mb: int = 512,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        address: str | None = None,
        listeners: Sequence[str] = (),
        first: KafkaBroker | None = None,
        node_id: int = 1,
    ) -> None:
        self.folder = folder
        self.address = address or f"127.0.0.1:{free_port()}"
        self.controller: str = first.controller if first else f"127.0.0.1:{free_port()}"
        self.cluster_id: str = first.cluster_id if first else _new_cluster_id()
        self._command = [
            find_java(),
            f"-Xmx{heap_mb}m",
            f"-Xms{heap_mb}m",
            *java_options,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            class_path(POM),
        ]
        self._properties = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        own = [f"PLAINTEXT://{self.address}", *([] if first else [f"CONTROLLER://{self.controller}"])]
        lines = _server_properties(self.controller, folder / "data", [*own, *listeners])
        if first:
            lines |= {"process.roles": "broker", "node.id": str(node_id)}
        lines |= dict(settings or {})
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._format()
        self.start()

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it, again after `kill` or `stop`, at the same address; returns once it answers."""
        with self._log() as log:
            self._process = start_for_the_test_run(
                [*self._command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until("Apache Kafka answers", self._answers, timeout_s=START_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL, 30)

    def stop(self) -> None:
        """SIGTERM, and wait until it has closed its logs; killed when that takes too long."""
        try:
            self._end(signal.SIGTERM, 30)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> KafkaBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def client(self, timeout_s: float = 20) -> ClusterClient:
        """A client of this broker."""
        return ClusterClient(self.address, timeout_s=timeout_s)

    def _end(self, number: int, timeout_s: float) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout_s)
            self._process = None

    def _log(self) -> IO[bytes]:
        return open(self.folder / "broker.log", "ab")

    def _format(self) -> None:
        if (self.folder / "data" / "meta.properties").exists():
            return
        done = kafka_tool("StorageTool", "format", "-t", self.cluster_id, "-c", str(self._properties))
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            words = (self.folder / "broker.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"Apache Kafka ended with exit code {self._process.returncode}:\n{words}")
        try:
            with ClusterClient(self.address, timeout_s=1) as client:
                client.topics()
        except MillraceError:
            return False
        return True


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(b"millrace" + os.urandom(8)).decode().rstrip("=")


def _server_properties(controller: str, data: Path, listeners: Sequence[str]) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # One broker cannot hold the three replicas that these topics have by default.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.coordinator.rebalance.protocols": "classic,consumer",
    }
