"""Everything a fault audit runs on, as real processes on loopback addresses.

Two datacenters, the aggregate cluster whose mirror can make mistakes, a registry, a reader for each cluster
and for the warehouse, the auditor. Starts, stops and kills; knows no fault and no verdict.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.records.mirror_position import Origin
from millrace.topics_file import VARIABLE
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, OFFLINE
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS
from millrace_broker.coordination.cluster import Cluster
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster, free_port
from tests.support import REPOSITORY, Process, run_millrace, wait_until

ORIGINS = ("dc1", "dc2")
PAGE_VIEW = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())
WITHOUT_HEADER = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}
"""The schema of the same events when their audit header is a record header."""
LOG = "[log]\nflush_ms = 20\n"
WAREHOUSE_READER = "warehouse-reader"
LOAD_S = 900.0
"""A load that takes longer hangs."""
ELECTED_S = 5.0
"""Time after which a partition without a leader needs an operator's decision."""


class Place:
    """Started when made; ends with the process that makes it. `folder` gets all data and logs."""

    def __init__(
        self,
        folder: Path,
        topics: Sequence[str],
        *,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        partitions: int = 1,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        strong: Sequence[str] = (),
        mirror_faults: Mapping[str, str] | None = None,
        uncounted: Collection[str] = (),
        patience_s: int = 600,
        brokers: int = 1,
    ) -> None:
        """`schemas` are topics' that have another than PageView, `settings` are topics' in the origins;
        `strong` names topics with strong fingerprints, also for the producers of this process;
        `mirror_faults` names an edit of `batches` for a topic; no reader counts the topics `uncounted` until
        `count` is called; `patience_s` is the auditor's with silent instances and with tables that are gone.

        Each cluster has `brokers` brokers and as many replicas; with several, each datacenter has a ZooKeeper
        of its own.
        """
        self.folder, self._patience_s, self._brokers = folder, patience_s, brokers
        self._topics, self._uncounted = topics, {*uncounted}
        self.warehouse, self.held = folder / "warehouse", folder / "held"
        self.held.mkdir(parents=True)
        if strong:
            policies = folder / "topics.toml"
            policies.write_text("".join(f'["{topic}"]\nfingerprint = "strong"\n' for topic in strong))
            os.environ[VARIABLE] = str(policies)
        self._faults = folder / "mirror-faults.json"
        self._faults.write_text(json.dumps(mirror_faults or {}))
        self._zookeepers = dict.fromkeys((*ORIGINS, OFFLINE), "zookeeper")
        if brokers > 1:
            self._zookeepers |= {name: f"{name}-zookeeper" for name in ORIGINS}
        zookeepers = sorted({*self._zookeepers.values()})
        self._ports = {name: free_port() for name in (*zookeepers, "registry", "auditor")}
        self.zookeeper = self.zookeeper_of(OFFLINE)
        self.registry = f"http://127.0.0.1:{self._ports['registry']}"
        self.auditor_url = f"http://127.0.0.1:{self._ports['auditor']}"
        self.processes: dict[str, Process] = {}
        self.clusters: dict[str, TestCluster] = {}
        self.restart(*zookeepers)
        self.restart("registry")
        self._register(dict.fromkeys(topics, PAGE_VIEW) | {**(schemas or {})})
        self._start_brokers(topics, partitions, settings or {})
        auditing = [*(f"{name}-reader" for name in self.clusters), WAREHOUSE_READER, "auditor"]
        self.restart(*auditing)

    # Processes by name: zookeeper, CLUSTER-zookeeper, registry, auditor, CLUSTER-N, CLUSTER-reader,
    # WAREHOUSE_READER.

    def start(self, name: str) -> None:
        """Start a process, again if it was there before; `ready` waits for it."""
        cluster, _, number = name.rpartition("-")
        if number.isdigit():
            broker = self.clusters[cluster].brokers[int(number)]
            broker.process = self.processes[name] = self.clusters[cluster].start("broker", str(broker.config))
        elif name == "auditor":
            words = [str(self._patience_s), *self._command(name)]
            self.processes[name] = Process(words, module="tests.trials.faultaudit.impatient_auditor")
        else:
            self.processes[name] = Process(self._command(name))

    def ready(self, *names: str) -> None:
        for name in names:
            self.processes[name].ready()

    def restart(self, *names: str) -> None:
        """Start these, and wait for all."""
        for name in names:
            self.start(name)
        self.ready(*names)

    def stop(self, *names: str) -> None:
        """SIGTERM."""
        for name in names:
            self.processes[name].stop()

    def kill(self, *names: str) -> None:
        """SIGKILL."""
        for name in names:
            self.processes[name].kill()

    @property
    def names(self) -> list[str]:
        """Names of every process that can be killed."""
        return list(self.processes)

    def write_outputs(self) -> None:
        """Write each process's output since its last start to a file of its name."""
        for name, process in self.processes.items():
            (self.folder / f"{name}.log").write_text(process.output + "\n")

    def _command(self, name: str) -> list[str]:
        places = ["--registry", self.registry, "--zookeeper", self.zookeeper]
        if name.endswith("zookeeper"):
            return ["zookeeper", "--port", str(self._ports[name]), "--data-dir", str(self.folder / name)]
        if name == "registry":
            database = [
                "--database-url",
                f"sqlite:///{self.folder}/registry.db",
                "--zookeeper",
                self.zookeeper,
            ]
            return ["registry", "--listen", f"127.0.0.1:{self._ports[name]}", *database]
        if name == "auditor":
            return self.auditor_command(self._ports[name])
        if name == WAREHOUSE_READER:
            warehouse = ["--warehouse", str(self.warehouse), "--interval-ms", "100"]
            return ["audit-warehouse", *warehouse, *places, "--bootstrap", self.clusters[OFFLINE].bootstrap]
        return self.reader_command(name.removesuffix("-reader"), name.removesuffix("-reader"))

    def auditor_command(self, port: int) -> list[str]:
        """The words that start an auditor on the one database."""
        return [
            *("auditor", "--listen", f"127.0.0.1:{port}", "--database-url", f"sqlite:///{self.database}"),
            *("--grace-s", "0", "--hello-patience-s", str(self._patience_s), "--origins", ",".join(ORIGINS)),
            *("--registry", self.registry, "--zookeeper", self.zookeeper),
            *("--bootstrap", self.clusters[OFFLINE].bootstrap),
        ]

    def reader_command(self, cluster: str, bootstrap_of: str) -> list[str]:
        """The words that start a reader of a cluster, with the brokers of that one or of another."""
        counted = ",".join(topic for topic in self._topics if topic not in self._uncounted) or "another"
        return [
            *("audit-reader", "--cluster", cluster, "--tier", cluster),
            *("--bootstrap", self.clusters[bootstrap_of].bootstrap, "--interval-ms", "100"),
            *(("--topics", counted) if self._uncounted else ()),
            *("--registry", self.registry, "--zookeeper", self.zookeeper),
        ]

    def elect_restored(self, cluster: str, broker: int) -> list[str]:
        """Let a broker lead the partitions with restored logs; return the partitions that waited for this."""
        time.sleep(ELECTED_S)
        with Cluster.connect(self.zookeeper_of(cluster), cluster, create=False) as known:
            live = {(number, one.directory) for number, one in known.brokers.items()}
            waiting = [
                f"{topic.name}-{number}"
                for topic in known.topics.values()
                for number, state in topic.partitions.items()
                if not live & {*state.isr.items(), *state.eligible.items()}
            ]
        if waiting:
            words = ("--unclean", *waiting, "--replica", str(broker), "--reason", "no newer copy")
            self.millrace("topics", "elect", *words, "--bootstrap", self.clusters[cluster].bootstrap)
        return waiting

    def leave_out(self, topic: str) -> None:
        """Restart the readers so that they no longer count a topic."""
        self._uncounted.add(topic)
        self._restart_readers()

    def count(self, topic: str) -> None:
        """Restart the readers so that they count a topic that they left out."""
        self._uncounted.remove(topic)
        self._restart_readers()

    def _restart_readers(self) -> None:
        readers = [f"{cluster}-reader" for cluster in self.clusters]
        self.stop(*readers)
        self.restart(*readers)

    def zookeeper_of(self, cluster: str) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._ports[self._zookeepers[cluster]]}"

    def brokers_of(self, cluster: str) -> list[str]:
        """Names of the broker processes of a cluster."""
        return [f"{cluster}-{number}" for number in self.clusters[cluster].brokers]

    @property
    def database(self) -> Path:
        """The auditor's."""
        return self.folder / "auditor.db"

    def log_folder(self, cluster: str, topic: str, partition: int = 0, broker: int = 1) -> Path:
        """Folder in which a broker keeps the segments of a partition."""
        (found,) = (self.folder / f"{cluster}-{broker}").glob(f"{topic}-{partition}-{'[0-9a-f]' * 32}")
        return found

    def _start_brokers(
        self, topics: Sequence[str], partitions: int, settings: Mapping[str, Mapping[str, str]]
    ) -> None:
        mirrored = [*topics, AUDIT_TOPIC, COUNTS_TOPIC]
        aggregate = LOG
        for name in ORIGINS:
            self._start_cluster(name, LOG, self._real)
            bootstrap = self.clusters[name].bootstrap
            aggregate += f"[mirror.{name}]\nbootstrap = {json.dumps(bootstrap)}\n"
            aggregate += f"topics = {json.dumps(mirrored)}\n"
            with self.clusters[name].client() as client:
                for topic in topics:
                    client.create_topic(topic, partitions, settings.get(topic, {}))
                for topic in (AUDIT_TOPIC, COUNTS_TOPIC):
                    client.create_topic(topic, 1, AUDIT_TOPIC_SETTINGS)
        self._start_cluster(OFFLINE, aggregate, self._faulty)
        with self.clusters[OFFLINE].client() as client:
            client.create_topic(OFFLINE_AUDIT_TOPIC, 1, AUDIT_TOPIC_SETTINGS)

    def _start_cluster(self, name: str, settings: str, start: Any) -> None:
        settings = f"default_replicas = {self._brokers}\n{settings}"
        cluster = TestCluster(start, name, self.folder, self.zookeeper_of(name), settings)
        self.clusters[name] = cluster.start_brokers(*range(1, self._brokers + 1))
        self.processes |= {f"{name}-{number}": broker.process for number, broker in cluster.brokers.items()}

    @staticmethod
    def _real(*arguments: str) -> Process:
        return Process(arguments)

    def _faulty(self, _: str, config: str) -> Process:
        return Process(
            [config, str(self._faults), str(self.held)], module="tests.trials.faultaudit.faulty_broker"
        )

    def _register(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        with SchemaRegistryClient(self.registry) as client:
            for path in (REPOSITORY / "schemas").glob("*.avsc"):
                client.register(path.stem, json.loads(path.read_text()))
            for topic, schema in schemas.items():
                client.register(topic, schema)

    # What users do.

    def millrace(self, *arguments: str) -> str:
        """Run a command that must succeed; return its output, or raise AssertionError."""
        done = run_millrace(*arguments)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def alter(self, cluster: str, topic: str, **settings: str) -> None:
        """Give a topic other settings; `segment_bytes` is `segment.bytes`."""
        words = [("--config", f"{key.replace('_', '.')}={value}") for key, value in settings.items()]
        bootstrap = self.clusters[cluster].bootstrap
        self.millrace(
            "topics", "alter", topic, "--bootstrap", bootstrap, *(w for pair in words for w in pair)
        )

    def target_of(self, origin: str, topic: str) -> int:
        """The partition of the aggregate cluster that mirrors the only one of an origin."""
        with self.clusters[origin].client() as client:
            source = Origin(origin, topic, client.topic(topic).topic_id, 0)
        with self.clusters[OFFLINE].client() as client:
            describe = MirrorAppend(mode=MirrorMode.DESCRIBE, origin=source)
            return client.mirror_append(topic, describe).partition

    @contextmanager
    def holding(self, topic: str) -> Iterator[None]:
        """The mirror copies nothing of the topic."""
        file = self.held / topic
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def await_mirror_stopped(self, topic: str) -> None:
        """Until the mirror says that it cannot go on with the topic by itself."""
        config = str(self.clusters[OFFLINE].brokers[1].config)

        def stopped() -> bool:
            rows = json.loads(self.millrace("mirror", "status", config, "--json"))
            return any(row["topic"] == topic and row["state"] == "stopped" for row in rows)

        wait_until(f"the mirror of {topic} has stopped", stopped)

    def reset_mirror(self, origin: str, topic: str) -> None:
        """Let a stopped mirror go on with what the origin has."""
        config = str(self.clusters[OFFLINE].brokers[1].config)
        self.millrace("mirror", "reset", config, "--origin", origin, "--topic", topic, "--yes")

    def producer(self, cluster: str, *, name: str = "", **options: Any) -> AuditedProducer:
        """An audited producer, given another name of its cluster if there is one; what is sent at once comes
        into one batch."""
        settings = {"config": {"linger.ms": 1000}, "server": f"{cluster}-web", "service": "shop", **options}
        bootstrap = self.clusters[cluster].bootstrap
        return AuditedProducer(bootstrap, self.registry, cluster=name or cluster, **settings)

    def start_load(self, topic: str, fault: str = "", *options: str) -> Process:
        """Begin to load what is new in a topic; by an edit of `batches` if one is named."""
        request = {
            "topics": [topic],
            "warehouse": str(self.warehouse),
            "bootstrap": self.clusters[OFFLINE].bootstrap,
            "registry": self.registry,
            **dict.fromkeys(options, True),
        }
        file = self.folder / f"load-{uuid4().hex[:8]}.json"
        file.write_text(json.dumps(request))
        return Process([str(file), fault], module="tests.trials.faultaudit.faulty_load")

    def load(self, topic: str, fault: str = "", *options: str) -> None:
        """The same to its end. AssertionError when it fails."""
        process = self.start_load(topic, fault, *options)
        code = process.wait(timeout_s=LOAD_S)
        assert code == 0, f"the load of {topic} ended with {code}:\n{process.output}"
