"""Several clusters, a registry and an auditor on one machine, as supervised processes.

Owns the order of starting and stopping, and the broker files it writes for each broker. The processes are
the ordinary commands: whatever runs here runs as well by hand, on machines of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.client.cluster_client import ClusterClient
from millrace.config import LogConfig, parse_address
from millrace.errors import ConfigError, MillraceError
from millrace.process import Child
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
MAX_RESTARTS = 3
RESTARTS_WITHIN_S = 60.0
"""A child that ends more often in this time will not stay by being started once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConfig:
    """What a cluster mirrors from its origins."""

    origins: Sequence[str]
    """Names of clusters in the same file."""
    topics: Sequence[str] = ()
    """Pulled all the time by the brokers."""
    batch_topics: Sequence[str] = ()
    """Get target partitions; the Spark batch mirror fills them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One cluster: its brokers' addresses, its topics, what it mirrors."""

    brokers: Sequence[str] = ()
    """HOST:PORT of each broker to start; port 0 takes a free one."""
    metrics: Sequence[str] = ()
    """HOST:PORT of each broker's metrics, in the brokers' order; empty: none."""
    bootstrap: str = ""
    """Instead of `brokers`: HOST:PORT[,HOST:PORT...] of a cluster that runs already, of Apache Kafka for
    example. Nothing of it is started or stopped."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics to create at the start, with their number of partitions."""
    audit_topic: str = "audit"
    """Where this cluster's auditing reader reports: `audit` is mirrored, `audit-offline` is not."""
    log: LogConfig = field(default_factory=LogConfig)
    mirror: MirrorConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """Everything `millrace up` starts."""

    data_dir: str = "millrace-data"
    zookeeper: str = "127.0.0.1:2181"
    registry: str = "127.0.0.1:8081"
    auditor: str = "127.0.0.1:8082"
    audit_interval_ms: int = 1000
    """How often auditing readers report."""
    grace_s: int = 60
    """A window can be final this long after its end at the earliest."""
    clusters: Mapping[str, ClusterConfig]
    """By name, in the order they start; the one with `mirror` is the aggregate cluster."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where everything that was started can be reached."""

    zookeeper: str
    registry_url: str
    auditor_url: str
    bootstraps: Mapping[str, str]
    """HOST:PORT[,HOST:PORT] by cluster name."""
    aggregate: str
    """Name of the aggregate cluster."""

    @property
    def origins(self) -> Mapping[str, str]:
        """Bootstraps of the clusters that are mirrored."""
        return {name: value for name, value in self.bootstraps.items() if name != self.aggregate}


Again = Callable[[str], Sequence[str]]
"""What a command that had this address is given in addition, to have it again."""


@dataclass(slots=True)
class _Supervised:
    """A child, and how it is started again."""

    child: Child
    command: Sequence[str]
    again: Again
    ended_at: list[float] = field(default_factory=list)


class Supervisor:
    """Starts children one after the other, starts those that die again, stops all in reverse order."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[_Supervised] = []
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{logs} cannot be made ({error.strerror}): give a data_dir that can be written"
            ) from None

    def start(self, name: str, *command: str, again: Again = lambda _: ()) -> Child:
        """Start `millrace COMMAND...` under a name, its output in <logs>/<name>.log."""
        return self.start_program(name, [sys.executable, "-m", "millrace.cli", *command], again)

    def start_program(self, name: str, command: Sequence[str], again: Again = lambda _: ()) -> Child:
        """Start any program under a name; it must print a ready line as the servers do."""
        child = Child(name, command, self._logs / f"{name}.log")
        self._children.append(_Supervised(child, command, again))
        return child

    def check(self) -> None:
        """MillraceError naming the first child that has ended."""
        for each in self._children:
            if each.child.exit_code is not None:
                raise MillraceError(f"{_end_of(each.child)} (see {each.child.log})")

    def watch(self, tell: Callable[[str], None]) -> None:
        """Start again what ends, and tell so; MillraceError when a child ends again and again."""
        while True:
            for each in self._children:
                if each.child.exit_code is not None:
                    self._start_again(each, tell)
            time.sleep(0.2)

    def _start_again(self, ended: _Supervised, tell: Callable[[str], None]) -> None:
        child, now = ended.child, time.monotonic()
        ended.ended_at = [*(at for at in ended.ended_at if at > now - RESTARTS_WITHIN_S), now]
        if len(ended.ended_at) > MAX_RESTARTS:
            raise MillraceError(
                f"{_end_of(child)}; it has ended {len(ended.ended_at)} times within"
                f" {RESTARTS_WITHIN_S:.0f} s, so everything is stopped (see {child.log})"
            )
        tell(f"{_end_of(child)}; starting it again (see {child.log})")
        if child.address is not None:
            ended.command = [*ended.command, *ended.again(child.address)]
            ended.again = lambda _: ()
        ended.child = Child(child.name, ended.command, child.log)

    def stop(self) -> None:
        """Stop every child, last started first; none is left when this returns."""
        while self._children:
            self._children.pop().child.stop(STOP_TIMEOUT_S)


def _end_of(child: Child) -> str:
    return f"{child.name} ended with exit code {child.exit_code}: {child.last_words()}"


def start(config: UpConfig, supervisor: Supervisor, broker_command: Sequence[str] = ()) -> Endpoints:
    """Start ZooKeeper, registry, every cluster and its auditing reader, and the auditor; say where they are.

    `broker_command` replaces the command that runs the aggregate cluster's brokers (fault injection).
    Raises MillraceError when something does not come up; the caller stops the supervisor in any case.
    """
    aggregate = _aggregate(config)
    data = Path(config.data_dir)
    data.mkdir(parents=True, exist_ok=True)
    _, port = parse_address(config.zookeeper, "zookeeper")
    zookeeper = supervisor.start(
        "zookeeper", "zookeeper", "--port", str(port), "--data-dir", str(data / "zookeeper"),
        again=lambda address: ("--port", address.rpartition(":")[2]),
    )  # fmt: skip
    database = f"sqlite:///{(data / 'registry.db').absolute()}"
    registry = supervisor.start(
        "registry", "registry", "--listen", config.registry, "--database-url", database, again=_listen
    )
    zookeeper_address = zookeeper.wait_until_ready(READY_TIMEOUT_S)

    bootstraps: dict[str, str] = {}
    for name, cluster in config.clusters.items():
        bootstraps[name] = cluster.bootstrap
        if cluster.brokers:
            settings = _broker_settings(config, name, bootstraps, zookeeper_address, data)
            program = broker_command if name == aggregate else ()
            bootstraps[name] = _start_brokers(name, cluster, settings, supervisor, data, program)
        _create_topics(bootstraps[name], cluster)
    registry_url = f"http://{registry.wait_until_ready(READY_TIMEOUT_S)}"

    auditor_url = _start_audit(config, aggregate, bootstraps, registry_url, supervisor, data)
    return Endpoints(zookeeper_address, registry_url, auditor_url, bootstraps, aggregate)


def _listen(address: str) -> Sequence[str]:
    return ("--listen", address)


def _set_listen(address: str) -> Sequence[str]:
    return ("--set", f"listen={address}")


def _aggregate(config: UpConfig) -> str:
    for name, cluster in config.clusters.items():
        if bool(cluster.brokers) == bool(cluster.bootstrap):
            raise ConfigError(
                f"clusters.{name} needs `brokers` to start, or `bootstrap` of what runs already"
            )
    elsewhere = [cluster.bootstrap for cluster in config.clusters.values() if cluster.bootstrap]
    if len(elsewhere) > len(set(elsewhere)):
        raise ConfigError("two clusters have one `bootstrap`: its messages would be counted twice")
    for name, cluster in config.clusters.items():
        if cluster.metrics and len(cluster.metrics) != len(cluster.brokers):
            raise ConfigError(f"clusters.{name}.metrics needs an address for each of its brokers, or none")
    names = [name for name, cluster in config.clusters.items() if cluster.mirror]
    if len(names) != 1:
        raise ConfigError("exactly one cluster needs a `mirror` table: the aggregate one")
    (aggregate,) = names
    mirror = config.clusters[aggregate].mirror
    assert mirror is not None
    if not config.clusters[aggregate].brokers:
        raise ConfigError(f"clusters.{aggregate} needs `brokers`: the mirror is part of Millrace's own")
    earlier = list(config.clusters)[: list(config.clusters).index(aggregate)]
    for origin in mirror.origins:
        if origin not in earlier:
            raise ConfigError(
                f"clusters.{aggregate}.mirror: origin {origin!r} is no cluster listed before it"
            )
    return aggregate


def _broker_settings(
    config: UpConfig, name: str, bootstraps: Mapping[str, str], zookeeper: str, data: Path
) -> list[str]:
    """The lines of a broker's file that all brokers of the cluster share, as TOML."""
    cluster = config.clusters[name]
    lines = [f"cluster = {json.dumps(name)}", f"zookeeper = {json.dumps(zookeeper)}", "", "[log]"]
    for key in LogConfig.__dataclass_fields__:
        value = getattr(cluster.log, key)
        lines.append(f"{key} = {-1 if value is None else value}")
    if cluster.mirror is not None:
        for origin in cluster.mirror.origins:
            lines += [
                "",
                f"[mirror.{origin}]",
                f"bootstrap = {json.dumps(bootstraps[origin])}",
                f"topics = {json.dumps(list(cluster.mirror.topics))}",
                f"batch_topics = {json.dumps(list(cluster.mirror.batch_topics))}",
            ]
    return lines


def _start_brokers(
    name: str,
    cluster: ClusterConfig,
    settings: Sequence[str],
    supervisor: Supervisor,
    data: Path,
    program: Sequence[str],
) -> str:
    """Start a cluster's brokers and wait for all; its bootstrap addresses."""
    brokers = []
    metrics = cluster.metrics or [""] * len(cluster.brokers)
    for broker_id, (listen, metrics_listen) in enumerate(zip(cluster.brokers, metrics, strict=True), start=1):
        label = f"{name}-{broker_id}"
        file = data / f"{label}.toml"
        own = [
            f"broker_id = {broker_id}",
            f"listen = {json.dumps(listen)}",
            f"metrics_listen = {json.dumps(metrics_listen)}",
            f"log_dir = {json.dumps(str(data / label))}",
        ]
        file.write_text("\n".join([*own, *settings]) + "\n")
        if program:
            brokers.append(supervisor.start_program(label, [*program, str(file)]))
        else:
            brokers.append(supervisor.start(label, "broker", str(file), again=_set_listen))
    return ",".join(broker.wait_until_ready(READY_TIMEOUT_S) for broker in brokers)


def _create_topics(bootstrap: str, cluster: ClusterConfig) -> None:
    with ClusterClient(bootstrap) as client:
        existing = client.topics()
        # A mirrored audit topic is made by the mirror, one target partition for each origin partition.
        for topic, partitions in {**cluster.topics, cluster.audit_topic: 1}.items():
            if topic not in existing:
                settings = AUDIT_TOPIC_SETTINGS if topic == cluster.audit_topic else {}
                client.create_topic(topic, partitions, settings)


def _start_audit(
    config: UpConfig,
    aggregate: str,
    bootstraps: Mapping[str, str],
    registry_url: str,
    supervisor: Supervisor,
    data: Path,
) -> str:
    """Start the auditor and one auditing reader for each cluster; the auditor's URL."""
    origins = ",".join(name for name in bootstraps if name != aggregate)
    auditor = supervisor.start(
        "auditor", "auditor",
        "--listen", config.auditor,
        "--database-url", f"sqlite:///{(data / 'auditor.db').absolute()}",
        "--bootstrap", bootstraps[aggregate],
        "--registry", registry_url,
        "--origins", origins,
        "--grace-s", str(config.grace_s),
        again=_listen,
    )  # fmt: skip
    for name, bootstrap in bootstraps.items():
        supervisor.start(
            f"{name}-reader", "audit-reader",
            "--cluster", name,
            "--tier", "offline" if name == aggregate else name,
            "--bootstrap", bootstrap,
            "--registry", registry_url,
            "--audit-topic", config.clusters[name].audit_topic,
            "--interval-ms", str(config.audit_interval_ms),
        )  # fmt: skip
    return f"http://{auditor.wait_until_ready(READY_TIMEOUT_S)}"
