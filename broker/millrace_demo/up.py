"""Several clusters, a registry and an auditor on one machine, as supervised processes.

This module decides the order of starting and stopping, and writes a file for each broker. The processes are
the ordinary commands: each of them may as well be started by hand, on another machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace import topics_file
from millrace.client.cluster_client import ClusterClient
from millrace.config import OFFLINE_AUDIT_TOPIC, ClientSecurity, parse_address
from millrace.deployment_file import ClusterConfig, MirrorConfig, UpConfig
from millrace.errors import ConfigError, MillraceError
from millrace.process import Child
from millrace.security.certificates import read_secret
from millrace.security.client import VARIABLE
from millrace.security.folder import HOSTS, SecurityFolder
from millrace.service.access import add_entry
from millrace.topics_file import read_policies
from millrace.urls import with_password
from millrace.zookeeper.session import Session
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, OFFLINE
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS
from millrace_commands.security import install
from millrace_mirror.adopt import adopt

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
MAX_RESTARTS = 3
RESTARTS_WITHIN_S = 60.0
"""Time in which a child may end MAX_RESTARTS times. If it ends more often, it is not started again."""
_MILLRACE = (sys.executable, "-m", "millrace.cli")
_LISTEN = ("--listen", "{address}")
AUTHORITY = "SSL_CERT_FILE"
"""Variable with the file of the certificate authority that HTTP clients trust."""
_OPERATOR = "millrace"
_WAREHOUSE = "warehouse"
_PRIVATE = 0o077
"""The umask of a secure deployment's processes."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of all started parts."""

    zookeeper: str
    registry_url: str
    """URL with the token, if the registry asks for a token. It must not be shown, nor must the
    auditor's URL."""
    auditor_url: str
    bootstraps: Mapping[str, str]
    """HOST:PORT[,HOST:PORT] by cluster name."""
    aggregate: str
    """Name of the aggregate cluster."""
    security: SecurityFolder | None = None
    """Folder of the clients' certificates and logins; None without security."""

    def client(self, user: str) -> ClientSecurity | None:
        """Return the connection settings of a user's processes; None: use the environment's settings."""
        return self.security.client(user) if self.security is not None else None

    @property
    def origins(self) -> Mapping[str, str]:
        """Bootstraps of the clusters that are mirrored."""
        return {name: value for name, value in self.bootstraps.items() if name != self.aggregate}


@dataclass(slots=True)
class _Supervised:
    """A child, and the command that starts it again."""

    child: Child
    command: Sequence[str]
    again: Sequence[str]
    """Words that let the restarted command listen at the same address; may hold `{address}` and `{port}`."""
    environment: Mapping[str, str]
    """Additional variables of the environment."""
    ended_at: list[float] = field(default_factory=list)


class Supervisor:
    """Starts children one after the other, restarts those that die, stops all in reverse order."""

    def __init__(self, logs: Path, *, is_private: bool = False) -> None:
        """Create the folder of the logs. With `is_private` only the user may read what the children write."""
        self._logs, self._umask = logs, _PRIVATE if is_private else -1
        self._children: list[_Supervised] = []
        self.until_stopped = ExitStack()
        """Resources that `stop` releases after the last child."""
        try:
            _make_folder(logs, is_private=is_private)
        except OSError as error:
            raise ConfigError(
                f"{logs} cannot be created ({error.strerror}): give a data_dir that can be written"
            ) from None

    def start(
        self,
        name: str,
        command: Sequence[str],
        again: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a program that prints a ready line like the servers; its output goes to <logs>/<name>.log."""
        child = Child(name, command, self._logs / f"{name}.log", environment, umask=self._umask)
        self._children.append(_Supervised(child, command, again, environment or {}))
        return child

    def lose(self, name: str) -> None:
        """Kill a child permanently: it is not restarted, and does not count as failed."""
        (lost,) = (supervised for supervised in self._children if supervised.child.name == name)
        self._children.remove(lost)
        lost.child.kill()

    def check(self) -> None:
        """Raise MillraceError, with the name of the first child that has ended."""
        for supervised in self._children:
            child = supervised.child
            if child.exit_code is not None:
                raise MillraceError(f"{_end_of(child)} (see {child.log})")

    def watch(self, notify: Callable[[str], None]) -> None:
        """Restart children that end, and call `notify` with a line about it.

        Raise MillraceError when a child ends repeatedly.
        """
        while True:
            for supervised in self._children:
                if supervised.child.exit_code is not None:
                    self._start_again(supervised, notify)
            time.sleep(0.2)

    def _start_again(self, ended: _Supervised, notify: Callable[[str], None]) -> None:
        child, now = ended.child, time.monotonic()
        ended.ended_at = [*(at for at in ended.ended_at if at > now - RESTARTS_WITHIN_S), now]
        if len(ended.ended_at) > MAX_RESTARTS:
            raise MillraceError(
                f"{_end_of(child)}; it has ended {len(ended.ended_at)} times within"
                f" {RESTARTS_WITHIN_S:.0f} s, so everything is stopped (see {child.log})"
            )
        notify(f"{_end_of(child)}; starting it again (see {child.log})")
        if child.address is not None:
            port = child.address.rpartition(":")[2]
            again = [word.format(address=child.address, port=port) for word in ended.again]
            ended.command, ended.again = [*ended.command, *again], ()
        ended.child = Child(child.name, ended.command, child.log, ended.environment, umask=self._umask)

    def stop(self) -> None:
        """Stop every child, the last started first. On return no child is left."""
        while self._children:
            self._children.pop().child.stop(STOP_TIMEOUT_S)
        self.until_stopped.close()


def _end_of(child: Child) -> str:
    return f"{child.name} ended with exit code {child.exit_code}: {child.last_words()}"


class Deployment:
    """Starts the parts of a deployment in order, each with the addresses of the parts before it.

    `broker_command` replaces the command that runs the aggregate cluster's brokers (fault injection).
    """

    def __init__(self, config: UpConfig, supervisor: Supervisor, broker_command: Sequence[str] = ()) -> None:
        self._config = config
        self._supervisor = supervisor
        self._broker_command = broker_command
        self._aggregate = aggregate_of(config)
        self._data = Path(config.data_dir)
        self._security = SecurityFolder(Path(config.security)) if config.security else None
        self._bootstraps: dict[str, str] = {}
        self._registry = ""

    def start(self) -> Endpoints:
        """Start everything and return the addresses; the caller stops the supervisor in any case.

        Raise MillraceError when a part does not start.
        """
        if self._config.topics_file:
            read_policies(self._config.topics_file)
            os.environ[topics_file.VARIABLE] = str(Path(self._config.topics_file).absolute())
        _make_folder(self._data, is_private=self._security is not None)
        self._supervisor.until_stopped.enter_context(_locked(self._data))
        if self._security is not None:
            self._security.make(_hosts(self._config))
            os.environ[AUTHORITY] = str(self._security.ca)  # for this process and all that it starts
        _, port = parse_address(self._config.zookeeper, "zookeeper")
        options = ["--port", str(port), "--data-dir", str(self._data / "zookeeper")]
        options += ["--heap-mb", str(self._config.zookeeper_heap_mb)]
        zookeeper = self._run("zookeeper", "zookeeper", *options, again=("--port", "{port}"))
        zookeeper_address = _address_of(zookeeper, "zookeeper")
        for name, cluster in self._config.clusters.items():
            bootstrap = self._start_brokers(name, zookeeper_address) if cluster.brokers else cluster.bootstrap
            self._bootstraps[name] = bootstrap
            _create_topics(bootstrap, cluster, self._security)
            if cluster.mirror is not None and cluster.bootstrap:
                fill = self._adopt_copies if cluster.mirror.by_mirrormaker else self._start_mirror
                fill(name, cluster.mirror, zookeeper_address)
        self._registry = self._start_registry(zookeeper_address)
        auditor_url = self._start_audit(zookeeper_address)
        registry_url = self._url("registry", self._registry)
        return Endpoints(
            zookeeper_address, registry_url, auditor_url, self._bootstraps, self._aggregate, self._security
        )

    def _run(
        self, name: str, command: str, *options: str, again: Sequence[str] = (), user: str = ""
    ) -> Child:
        """Start a command of Millrace. With `user` it connects to the brokers as that user, and with a token
        of its own to a registry that has started.
        """
        asks = user and self._registry
        environment = {"MILLRACE_REGISTRY": self._url("registry", self._registry, name)} if asks else {}
        if self._security and user:
            environment[VARIABLE] = str(self._security.client_file(user))
        return self._supervisor.start(name, [*_MILLRACE, command, *options], again, environment)

    def _guard(self, service: str) -> Sequence[str]:
        """Return the options with which a service uses TLS and asks for tokens.

        Create missing tokens.
        """
        if self._security is None:
            return ()
        access = make_tokens(self._security, service, roles_of(self._config)[service])
        return ("--access", str(access), "--certificate", str(self._security.broker))

    def _url(self, service: str, address: str, client: str = _OPERATOR) -> str:
        """Return the URL at which a client asks a service, with its token."""
        if self._security is None:
            return f"http://{address}"
        token = read_secret(str(_token_file(self._security, service, client)), "the token")
        return with_password(f"https://{client}@{address}", token)

    def _database(self, service: str) -> str:
        return f"sqlite:///{(self._data / f'{service}.db').absolute()}"

    def _start_registry(self, zookeeper: str) -> str:
        """Start the registry, which shows the topics of the aggregate cluster; return its address."""
        options = ["--listen", self._config.registry, "--database-url", self._database("registry")]
        options += ["--zookeeper", zookeeper, "--bootstrap", self._bootstraps[self._aggregate]]
        options += self._guard("registry")
        registry = self._run("registry", "registry", *options, again=_LISTEN, user="consumer")
        return _address_of(registry, "registry")

    def _start_brokers(self, name: str, zookeeper: str) -> str:
        """Start a cluster's brokers and wait for all of them; return its bootstrap addresses."""
        cluster = self._config.clusters[name]
        if self._security is not None:
            _create_users(self._security, zookeeper, name)
        shared = self._broker_settings(name, zookeeper)
        metrics = cluster.metrics or [""] * len(cluster.brokers)
        brokers = []
        for broker_id, (listen, metrics_listen) in enumerate(zip(cluster.brokers, metrics, strict=True), 1):
            label = f"{name}-{broker_id}"
            file = self._data / f"{label}.toml"
            own = _toml(broker_id=broker_id, metrics_listen=metrics_listen, log_dir=str(self._data / label))
            listener, key = _toml(listen=listen), "listen"
            if self._security is not None:
                tls = _toml(certificate=str(self._security.broker))
                key = "listeners.clients.listen"
                listener = ["[listeners.clients]", *listener, *_toml(protocol="SASL_SSL"), "[tls]", *tls]
                listener += ["[security]", *_toml(authorizer=True)]
                if cluster.replicas > 1:
                    listener += ["[replica_client]", *_toml(**asdict(self._security.client("broker")))]
            else:
                own, listener = [*own, *listener], []
            file.write_text("\n".join([*own, *shared, *listener]) + "\n")
            command = [*_MILLRACE, "broker", str(file)]
            if self._broker_command and name == self._aggregate:
                command = [*self._broker_command, str(file)]
            brokers.append(self._supervisor.start(label, command, again=("--set", f"{key}={{address}}")))
        return ",".join(_address_of(broker, f"clusters.{name}.brokers") for broker in brokers)

    def _broker_settings(self, name: str, zookeeper: str) -> list[str]:
        """Return the lines that the files of all the cluster's brokers share."""
        cluster = self._config.clusters[name]
        log = {key: -1 if value is None else value for key, value in asdict(cluster.log).items()}
        own = _toml(cluster=name, zookeeper=zookeeper, default_replicas=cluster.replicas)
        lines = [*own, "[log]", *_toml(**log)]
        return lines if cluster.mirror is None else [*lines, *self._origin_lines(cluster.mirror)]

    def _origin_lines(self, mirror: MirrorConfig) -> list[str]:
        """Return a table [mirror.NAME] for each origin."""
        topics = _toml(topics=mirror.topics, batch_topics=mirror.batch_topics)
        lines: list[str] = []
        for origin in mirror.origins:
            lines += [f"[mirror.{origin}]", *_toml(bootstrap=self._bootstraps[origin]), *topics]
            if self._security is not None:
                values = asdict(self._security.client("mirror"))
                lines += [f"[mirror.{origin}.security]", *_toml(**values)]
        return lines

    def _start_mirror(self, name: str, mirror: MirrorConfig, zookeeper: str) -> None:
        """Start the mirror into an Apache Kafka, and wait until it is ready."""
        file = self._data / f"{name}-mirror.toml"
        own = _toml(cluster=name, bootstrap=self._bootstraps[name], zookeeper=zookeeper)
        file.write_text("\n".join([*own, *self._origin_lines(mirror)]) + "\n")
        command = [*_MILLRACE, "mirror", "run", str(file)]
        client = {VARIABLE: str(self._security.client_file("mirror"))} if self._security else {}
        self._supervisor.start(f"{name}-mirror", command, environment=client).wait_until_ready(
            READY_TIMEOUT_S
        )

    def _adopt_copies(self, name: str, mirror: MirrorConfig, zookeeper: str) -> None:
        """Note for the cluster in ZooKeeper that MirrorMaker 2 fills it."""
        admin = self._security.client("admin") if self._security is not None else None
        with (
            closing(Session.connect(zookeeper)) as session,
            ClusterClient(self._bootstraps[name], security=admin) as client,
        ):
            adopt(session, name, client, mirror.origins)

    def _start_audit(self, zookeeper: str) -> str:
        """Start the auditor and a reader for each cluster and the warehouse; return the auditor's URL."""
        config, zookeeper_at = self._config, ("--zookeeper", zookeeper)
        options = ["--listen", config.auditor, "--database-url", self._database("auditor"), *zookeeper_at]
        options += self._guard("auditor")
        options += ["--bootstrap", self._bootstraps[self._aggregate], "--grace-s", str(config.grace_s)]
        options += ["--origins", ",".join(name for name in self._bootstraps if name != self._aggregate)]
        auditor = self._run("auditor", "auditor", *options, again=_LISTEN, user="auditor")
        for name, bootstrap in self._bootstraps.items():
            options = ["--cluster", name, "--tier", OFFLINE if name == self._aggregate else name]
            options += zookeeper_at
            options += ["--bootstrap", bootstrap, "--interval-ms", str(config.audit_interval_ms)]
            self._run(_reader_of(name), "audit-reader", *options, user="reader")
        if config.warehouse:
            options = ["--warehouse", config.warehouse, "--bootstrap", self._bootstraps[self._aggregate]]
            options += [*zookeeper_at, "--interval-ms", str(config.audit_interval_ms)]
            self._run(_reader_of(_WAREHOUSE), "audit-warehouse", *options, user="reader")
        return self._url("auditor", _address_of(auditor, "auditor"))


def _address_of(child: Child, key: str) -> str:
    """Wait until a child is ready, and return its address. If the address is in use, the MillraceError names
    its key in the deployment's file.
    """
    try:
        return child.wait_until_ready(READY_TIMEOUT_S)
    except MillraceError as error:
        reason, _, remedy = str(error).partition("; ")
        if "cannot listen on" not in reason:
            raise
        if "metrics_listen" in remedy:
            key = key.removesuffix("brokers") + "metrics"
        raise MillraceError(
            f"{reason}; end the process that uses this address, or set another `{key}` in the deployment's"
            " file or with --set"
        ) from None


def roles_of(config: UpConfig) -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the roles of each client's token, by service. Only the operator has more roles than it needs."""
    counts = ("read", "register:Audit*")  # the auditor writes operators' decisions
    readers = [_reader_of(name) for name in (*config.clusters, _WAREHOUSE)]
    return {
        "registry": {
            _OPERATOR: ("read", "register", "admin"),
            "auditor": counts,
            **dict.fromkeys(readers, counts),
        },
        "auditor": {_OPERATOR: ("read", "metrics", "accept")},
    }


def _reader_of(place: str) -> str:
    """Return the name of the process that counts in a cluster or in the warehouse, and of its token."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{place}-reader")


def make_tokens(security: SecurityFolder, service: str, roles: Mapping[str, Sequence[str]]) -> Path:
    """Create the missing tokens of a service's clients, and the service's file of tokens.

    Return that file. If the file is missing no token is valid, so all tokens are created again.
    """
    access = security.path / f"{service}-access.toml"
    is_new = not access.exists()
    for client, allowed in roles.items():
        file = _token_file(security, service, client)
        if is_new or not file.exists():
            security.write_token(file.stem, add_entry(access, client, allowed))
    return access


def _token_file(security: SecurityFolder, service: str, client: str) -> Path:
    """Return the file of a client's token; the operator's file is named like the service."""
    return security.token_file(service if client == _OPERATOR else f"{service}-{client}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other deployments out of a folder. Raise MillraceError if one runs there."""
    with (folder / "process").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise MillraceError(
                f"the deployment in {folder} runs already, as process {lock.read()}: use it, or give another"
                " data_dir"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _make_folder(path: Path, *, is_private: bool) -> None:
    """Create a folder. Only its owner may use a private folder, even if the folder existed before."""
    path.mkdir(parents=True, exist_ok=True)
    if is_private:
        path.chmod(0o700)


def _toml(**values: object) -> list[str]:
    """Return a line of TOML for each key. Numbers, texts and lists of texts are written as in JSON."""
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def aggregate_of(config: UpConfig) -> str:
    """Return the name of the aggregate cluster.

    Raise ConfigError when the clusters do not make a deployment.
    """
    _check_clusters(config.clusters)
    names = [name for name, cluster in config.clusters.items() if cluster.mirror]
    if len(names) != 1:
        raise ConfigError("exactly one cluster needs a `mirror` table: the aggregate one")
    (aggregate,) = names
    mirror = config.clusters[aggregate].mirror
    assert mirror is not None
    if config.clusters[aggregate].bootstrap and mirror.batch_topics:
        raise ConfigError(
            f"clusters.{aggregate}.mirror.batch_topics: the batch mirror writes to Millrace brokers only;"
            " move the topics to `topics`"
        )
    if mirror.by_mirrormaker and not config.clusters[aggregate].bootstrap:
        raise ConfigError(
            f"clusters.{aggregate}.mirror.by_mirrormaker: Millrace's own brokers mirror by themselves; leave"
            f" it out, or give clusters.{aggregate} a `bootstrap` of an Apache Kafka"
        )
    earlier = list(config.clusters)[: list(config.clusters).index(aggregate)]
    for origin in mirror.origins:
        if origin not in earlier:
            raise ConfigError(
                f"clusters.{aggregate}.mirror: origin {origin!r} is not a cluster that the file lists"
                " before it"
            )
    return aggregate


def audit_topics(cluster: ClusterConfig) -> tuple[str, ...]:
    """Return the topics of the audit's records in a cluster; only the aggregate cluster's is not mirrored."""
    return (AUDIT_TOPIC, COUNTS_TOPIC) if cluster.mirror is None else (OFFLINE_AUDIT_TOPIC,)


def _check_clusters(clusters: Mapping[str, ClusterConfig]) -> None:
    for name, cluster in clusters.items():
        if bool(cluster.brokers) == bool(cluster.bootstrap):
            raise ConfigError(
                f"clusters.{name} needs either `brokers` to start or the `bootstrap` of a running cluster"
            )
    elsewhere = [cluster.bootstrap for cluster in clusters.values() if cluster.bootstrap]
    if len(elsewhere) > len(set(elsewhere)):
        raise ConfigError(
            "two clusters have the same `bootstrap`, so its messages would be counted twice: remove one"
        )
    for name, cluster in clusters.items():
        if cluster.brokers and not 1 <= cluster.replicas <= len(cluster.brokers):
            raise ConfigError(
                f"clusters.{name}.replicas = {cluster.replicas} needs as many `brokers`, and there are"
                f" {len(cluster.brokers)}"
            )
        if cluster.metrics and len(cluster.metrics) != len(cluster.brokers):
            raise ConfigError(f"clusters.{name}.metrics needs an address for each of its brokers, or none")


def _hosts(config: UpConfig) -> list[str]:
    """Return the names by which brokers and services of the deployment are reached, each once."""
    brokers = [one for cluster in config.clusters.values() for one in cluster.brokers]
    places = [parse_address(one)[0] for one in (*brokers, config.registry, config.auditor)]
    return list(dict.fromkeys([*HOSTS, *places]))


def _create_users(security: SecurityFolder, zookeeper: str, cluster: str) -> None:
    """Create the folder's users, with their logins and rights, in a cluster that has no broker yet."""
    session = Session.connect(zookeeper)
    try:
        install(session, cluster, security)
    finally:
        session.close()


def _create_topics(bootstrap: str, cluster: ClusterConfig, security: SecurityFolder | None) -> None:
    admin = security.client("admin") if security is not None else None
    with ClusterClient(bootstrap, security=admin) as client:
        existing = client.topics()
        # The mirror creates a mirrored audit topic, with one target partition for each origin partition.
        for topic, partitions in {**cluster.topics, **dict.fromkeys(audit_topics(cluster), 1)}.items():
            if topic not in existing:
                settings = AUDIT_TOPIC_SETTINGS if topic in audit_topics(cluster) else {}
                client.create_topic(topic, partitions, settings)
