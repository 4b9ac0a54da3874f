"""ActiveMQ of Debian's package: one queue over OpenWire, persistent in KahaDB or kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from millrace.zookeeper.embedded import find_java
from tests.bench.broker import java, meter
from tests.bench.broker.server import ServerProcess, apt_install, package_version
from tests.bench.broker.system import LARGE, Client, Command
from tests.brokers import free_port

JAR = Path("/usr/share/activemq/bin/activemq.jar")
HEAP_MB = 2048

# KahaDB is flushed every 100 ms, as Millrace does it, and has larger index batches, as in the package's own
# example for throughput. A consumer acknowledges once it has 650 messages: with the default page of
# 200 it would wait for the broker and the broker for it.
_CONFIG = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" dataDirectory="{folder}/data"
      useJmx="false" advisorySupport="false" persistent="{persistent}">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue=">" maxPageSize="2000" optimizedDispatch="true">{cursor}</policyEntry>
    </policyEntries></policyMap></destinationPolicy>
    {store}
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="1500 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="20 gb"/></storeUsage>
      <tempUsage><tempUsage limit="20 gb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>
      <transportConnector name="openwire" uri="tcp://127.0.0.1:{port}"/>
    </transportConnectors>
  </broker>
</beans>
"""
STORE = (
    '<persistenceAdapter><kahaDB directory="{folder}/data/kahadb" journalDiskSyncStrategy="periodic" '
    'journalDiskSyncInterval="100" indexWriteBatchSize="10000" indexCacheSize="100000"/></persistenceAdapter>'
)
_MEMORY = "<pendingQueuePolicy><vmQueueCursor/></pendingQueuePolicy>"


class ActiveMq:
    """One broker, with or without a store."""

    def __init__(self, *, persistent: bool) -> None:
        self.name = "activemq" if persistent else "activemq-memory"
        self.title = "ActiveMQ, persistent" if persistent else "ActiveMQ, not persistent"
        self.flush = (
            "KahaDB flushed every 100 ms (journalDiskSyncStrategy=periodic), visible before"
            if persistent
            else "kept in memory only, lost when the broker ends"
        )
        self.version = "?"
        self.clients: Sequence[Client] = ()
        self._persistent = persistent
        self._folder = Path()
        self._process: ServerProcess | None = None

    def install(self) -> None:
        """Debian's package."""
        java.prepare()
        apt_install("activemq", JAR)
        self.version = package_version("activemq")

    def start(self, folder: Path) -> None:
        """With 2 GiB of heap: what is not persistent must fit in."""
        self._folder = folder
        port = free_port()
        (folder / "activemq.xml").write_text(
            _CONFIG.format(
                folder=folder,
                port=port,
                persistent=str(self._persistent).lower(),
                store=STORE.format(folder=folder) if self._persistent else "",
                cursor="" if self._persistent else _MEMORY,
            )
        )
        properties = {"home": JAR.parent.parent, "base": folder, "conf": folder, "data": folder / "data"}
        arguments = [find_java(), f"-Xms{HEAP_MB}m", f"-Xmx{HEAP_MB}m"]
        arguments += [f"-Dactivemq.{key}={value}" for key, value in properties.items()]
        arguments += ["-jar", str(JAR), "start", f"xbean:file:{folder}/activemq.xml"]
        self._process = ServerProcess("activemq", arguments, folder / "activemq.log")
        self._process.wait_for_port(port)
        self.clients = [JmsClient(port, persistent=self._persistent)]

    def pids(self) -> list[int]:
        """One JVM."""
        assert self._process is not None
        return meter.tree(self._process.pid)

    def create(self, place: str) -> None:
        """The first message makes the queue."""

    def delete(self, place: str) -> None:
        """The queue and the messages nobody consumed."""
        client = self.clients[0]
        assert isinstance(client, JmsClient)
        java.run(client.delete(place))

    def files(self, place: str) -> list[Path]:
        """All queues share one store."""
        return [self._folder / "data" / "kahadb"] if self._persistent else []

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None


class JmsClient:
    """ActiveMQ's Java client in a load class of ours: asynchronous sends, optimised acknowledgements."""

    name = "activemq-client"
    holds_rate = True

    def __init__(self, port: int, *, persistent: bool) -> None:
        self._url = f"tcp://127.0.0.1:{port}"
        self._persistent = str(persistent).lower()

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command | None:
        """JMS sends one message at a time; 50 are a transaction of 50, larger ones gain nothing."""
        if per_request == LARGE:
            return None
        return self._load("produce", place, messages=messages, transaction=per_request, rate=rate)

    def consume(self, place: str, messages: int) -> Command:
        """Prefetches 1,000, as in the paper."""
        return self._load("consume", place, messages=messages)

    def latency(self, place: str, rate: int, seconds: int) -> Command:
        """Two connections."""
        return self._load("latency", place, rate=rate, seconds=seconds)

    def delete(self, queue: str) -> Command:
        """Delete a queue with all that is in it."""
        return self._load("delete", queue)

    def _load(self, what: str, queue: str, **options: object) -> Command:
        return java.load_class(
            "JmsLoad", 512, do=what, url=self._url, queue=queue, persistent=self._persistent, **options
        )
