"""A Java service that sends the demo's events as JSON. Its properties alone make it audited.

The service is `plugins/java/demo`. It reads events from its standard input, and ends with an error unless
every event was acknowledged. Sent events are counted here: the proof does not depend on the jar's reports.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from millrace.client.cluster_client import ClusterClient
from millrace.client.kafka_positions import TopicLog
from millrace.errors import MillraceError
from millrace.process import start_child
from millrace.zookeeper.embedded import find_java
from millrace_audit.producer import Delivered
from millrace_audit.reports.messages import AUDIT_TOPIC, AuditCodec, Hello
from millrace_registry.client import SchemaRegistryClient

MAIN_CLASS = "io.millrace.demo.JsonService"
JAVA_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
PROPERTIES = """\
bootstrap.servers={bootstrap}
key.serializer=org.apache.kafka.common.serialization.StringSerializer
value.serializer=org.apache.kafka.common.serialization.StringSerializer
interceptor.classes=io.millrace.audit.AuditInterceptor
millrace.server={server}
millrace.service=site
# The events are hours or years old: no window is closed before the service ends.
millrace.lateness.ms=1000000000000
"""


class JavaService:
    """One running service, with the methods of AuditedProducer that the demo calls."""

    def __init__(self, jars: Path, bootstrap: str, registry_url: str, server: str, scratch: Path) -> None:
        """Start the service of a server. Its properties and its log are written into `scratch`."""
        self.server = server
        self._bootstrap, self._registry_url = bootstrap, registry_url
        self._sent: Counter[str] = Counter()
        properties = scratch / f"{server}.properties"
        properties.write_text(PROPERTIES.format(bootstrap=bootstrap, server=server))
        self._log = scratch / "logs" / f"{server}.log"
        command = [find_java(), *JAVA_OPTIONS, "-cp", f"{jars}/*", MAIN_CLASS, str(properties)]
        with self._log.open("w") as log:
            self._process = start_child(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True
            )

    def send(self, topic: str, schema: str, event: Mapping[str, Any], *, time_ms: int) -> None:
        """Let the service send an event as JSON, which needs no schema."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic}\t{time_ms}\t{json.dumps(event)}\n")
        self._sent[topic] += 1

    def __enter__(self) -> JavaService:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait until every event is acknowledged. Raise MillraceError if the service has failed."""
        # This service or another has ended before its last event; the exit code decides which.
        has_ended = isinstance(error, BrokenPipeError)
        if error is not None and not has_ended:
            self._process.kill()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        if code and (error is None or has_ended):
            raise MillraceError(f"the Java service {self.server} failed: see {self._log}") from error

    def delivered(self) -> list[Delivered]:
        """Return all sent events as acknowledged. Call it only after the service has ended."""
        return [Delivered(topic, [(0, count - 1)], []) for topic, count in self._sent.items()]

    @cached_property
    def instance(self) -> int:
        """Number that the jar drew for this service, from the service's hello in the topic audit."""
        with ClusterClient(self._bootstrap) as client, SchemaRegistryClient(self._registry_url) as registry:
            codec = AuditCodec(registry)
            for record in TopicLog(client, AUDIT_TOPIC).read():
                hello = codec.decode(record.value)
                if isinstance(hello, Hello) and hello.server == self.server:
                    return hello.instance
        raise MillraceError(f"the Java service {self.server} is not audited: see {self._log}")
