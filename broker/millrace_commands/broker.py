"""`millrace broker`: one broker process, from its settings to its end."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millrace.config import BrokerConfig, load
from millrace.logs import start_logging
from millrace.process import allow_open_files
from millrace.records.runs import IS_COMPILED
from millrace.repeated_lines import RepeatedLines
from millrace.security.certificates import ServerCertificates
from millrace.signals import stop_on_signals
from millrace.zookeeper.topic_state import BrokerAddress
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.brokers import PROTOCOL
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.groups import ConsumerRegistry
from millrace_broker.coordination.quotas import QuotaStore
from millrace_broker.groups import Groups
from millrace_broker.handlers import Handlers, Services, all_apis
from millrace_broker.handlers.produce_lane import serve_lane
from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.generation import take
from millrace_broker.security.journal import Journal
from millrace_broker.security.login import LoginThread
from millrace_broker.security.quotas import Meters
from millrace_broker.security.rights import ANONYMOUS, Guard
from millrace_broker.server.listener import Listener
from millrace_broker.server.loop import Server
from millrace_broker.storage.log_directory import LogDirectory
from millrace_mirror.embedded import Mirror
from millrace_mirror.handlers import apis as mirror_apis

if TYPE_CHECKING:
    from millrace_broker.coordination.users import Users
    from millrace_broker.metrics import MetricsServer
    from millrace_broker.security.oauth import KeySet

logger = logging.getLogger("millrace.commands.broker")

GARBAGE_THRESHOLD = 20_000
SWITCH_INTERVAL_S = 0.0005
"""Longest time that another thread may keep the loop waiting at once. While metrics of 1,000 partitions were
produced, the median request took 2.8 ms with Python's default of 5 ms and 0.8 ms with this value, which cost
no CPU time."""


@click.command()
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the file.")
def broker(config: Path, overrides: Sequence[str]) -> None:
    """Run one broker of a cluster until SIGTERM or Ctrl-C.

    Prints "ready: broker ... on HOST:PORT" once it accepts clients. The file's keys: broker_id, cluster,
    listen or [listeners.NAME], zookeeper, log_dir, metrics_listen, limits such as max_connections, [log],
    [mirror.NAME]; docs/configuration.md describes all keys.

    Example: millrace broker dc1.toml --set broker_id=2 --set listen=127.0.0.1:9093 --set log_dir=data2
    """
    start_logging("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatedLines())
    run(load(BrokerConfig, config, overrides))


def run(config: BrokerConfig, clock: Callable[[], float] = time.time) -> None:
    """Start everything in order, serve until a signal, stop everything in the opposite order."""
    allow_open_files()
    logs = LogDirectory.open(Path(config.log_dir), config.log, clock, config.max_producer_ids)
    mailbox = Mailbox()
    certificates = _certificates(config)
    listeners = [Listener(name, one, certificates) for name, one in config.named_listeners.items()]
    for listener in listeners:
        listener.takes_brokers = listener.name == (config.replica_listener or listeners[0].name)
    server = Server(listeners, mailbox, config)
    cluster = Cluster.connect(
        config.zookeeper,
        config.cluster,
        session_timeout_ms=config.session_timeout_ms,
        identity=config.zookeeper_identity,
        default_replicas=config.default_replicas,
    )
    try:
        users = _users(config, cluster, listeners)
        acls, quotas = _rights(config, cluster, listeners)
        generation = take(Path(config.log_dir), cluster, config.broker_id)
        broker = Broker(
            config, cluster, logs, mailbox, directory=generation.directory, still_there=generation.still_there
        )
        if generation.zookeeper_is_restored:
            broker.replicas.forget_zookeeper()
        broker.start()
        mirror = Mirror(config.mirror, config.broker_id, cluster, broker)
        registry = ConsumerRegistry(cluster.session, config.cluster)
        groups = Groups(config, cluster, registry, mailbox, standstills=broker.standstills)
        cluster.session.on_reconnect(lambda: mailbox.post(groups.check))
        login_thread = LoginThread(mailbox.post) if users is not None else None
        services = Services(broker, groups, acls, users, login_thread, quotas)
        handlers = Handlers(services, all_apis(mirror_apis(mirror.states)))
        metrics = None
        if config.metrics_listen:
            metrics = _serve_metrics(config, broker, server, groups, mirror, certificates)
        _collect_garbage_seldom()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        server.listen()
        first = listeners[0]
        advertised = {listener.name: listener.advertised for listener in listeners}
        own = BrokerAddress(*first.advertised, advertised, config.rack, generation.directory, PROTOCOL)
        # Last: clients may come at once
        cluster.register_broker(config.broker_id, own, (first.host, first.port))
        broker.clock_check.look()
        # Until here nothing has to be ended
        generation.keep(
            lambda: broker.flushes.done,
            partial(_in_loop, mailbox, broker.zookeeper_restored),
            lambda: broker.replicas.have_reported,
        )
        read_again = certificates.read_again if certificates is not None else None
        stop_on_signals(partial(_stop, mirror, mailbox, broker, server), read_again=read_again)
        if certificates is not None:
            certificates.watch()
        if users is not None:
            users.watch(lambda: mailbox.post(lambda: server.close_deleted(users.names)))
        if acls is not None and quotas is not None:
            acls.watch()
            quotas.watch()
        for listener in listeners:
            at = f"{listener.host}:{listener.port}"
            logger.info(
                "listener %s on %s, which clients find at %s:%s", listener.name, at, *listener.advertised
            )
            if listener.is_open:
                may = "may do everything" if acls is None else f"is {ANONYMOUS}"
                logger.warning("listener %s on %s has no TLS: whoever reaches it %s", listener.name, at, may)
        logger.info("runs of small requests are served %s", "compiled" if IS_COMPILED else "in Python alone")
        address = f"{first.host}:{first.port}"
        print(f"ready: broker {config.broker_id} of {config.cluster} on {address}", flush=True)
        mirror.start()
        lanes = partial(serve_lane, services, max_frame_bytes=config.max_frame_bytes)
        server.run(handlers.serve_next, lanes, broker.end_of_turn)
        logger.info("stopping: bringing everything to the disk")
        if metrics is not None:
            metrics.close()
        groups.close()
        broker.finalize()
        generation.close()
        server.close()
    finally:
        cluster.close()
    broker.close()


def _certificates(config: BrokerConfig) -> ServerCertificates | None:
    """Return the certificates, if a listener or the metrics use TLS.

    Raise ConfigError when they cannot be used.
    """
    modes = [one.client_certificates for one in config.listeners.values() if one.uses_tls]
    if config.metrics_tls:
        modes.append("none")
    return ServerCertificates(config.tls, modes) if modes else None


def _users(config: BrokerConfig, cluster: Cluster, listeners: Sequence[Listener]) -> Users | None:
    """Return the users if a listener asks for logins or the brokers manage users.

    Load the libraries only then.
    """
    asking = [one for one in listeners if config.named_listeners[one.name].uses_sasl]
    if not (asking or config.security.authorizer):
        return None
    from millrace_broker.coordination.users import Users
    from millrace_broker.security.plain import PlainExchange
    from millrace_broker.security.scram import scram_mechanisms

    users = Users(cluster.session, config.cluster)
    lifetime_ms = config.security.reauthenticate_ms
    keys: KeySet | None = None
    for listener in asking:
        names = config.named_listeners[listener.name].mechanisms
        listener.login_lifetime_s = None if lifetime_ms is None else lifetime_ms / 1000
        mechanisms = dict(scram_mechanisms(names, users.credentials, users.secret))
        if "PLAIN" in names:
            mechanisms["PLAIN"] = partial(PlainExchange, users.credentials)
        if "OAUTHBEARER" in names:
            from millrace_broker.security.oauth import BearerExchange, KeySet

            if keys is None:
                keys = KeySet(config.oauth)
                keys.watch()
            mechanisms["OAUTHBEARER"] = partial(BearerExchange, config.oauth, keys)
        listener.mechanisms = mechanisms
    return users


def _rights(
    config: BrokerConfig, cluster: Cluster, listeners: Sequence[Listener]
) -> tuple[AclStore, QuotaStore] | tuple[None, None]:
    """Return the access rules and quotas, and make listeners use them, if the broker has an authorizer."""
    if not config.security.authorizer:
        return None, None
    acls, quotas = AclStore(cluster.session, config.cluster), QuotaStore(cluster.session, config.cluster)
    guard = Guard(acls, frozenset(config.security.super_users), Journal(), Meters(quotas))
    for listener in listeners:
        listener.guard = guard
    return acls, quotas


def _serve_metrics(
    config: BrokerConfig,
    broker: Broker,
    server: Server,
    groups: Groups,
    mirror: Mirror,
    certificates: ServerCertificates | None,
) -> MetricsServer:
    """Start to serve metrics on `metrics_listen`; the libraries are loaded only then."""
    from millrace.service.access import AccessList
    from millrace_broker.metrics import MetricsServer
    from millrace_broker.metrics.lag import GroupOffsets
    from millrace_broker.metrics.numbers import Numbers
    from millrace_mirror.metrics import BrokerMirrorNumbers

    offsets = GroupOffsets(ConsumerRegistry(broker.cluster.session, config.cluster), broker)
    guests = [BrokerMirrorNumbers(mirror.states, broker)]
    numbers = Numbers(broker=broker, server=server, groups=groups, offsets=offsets, guests=guests)
    access = AccessList(config.metrics_access) if config.metrics_access else None
    tls = certificates if config.metrics_tls else None
    metrics = MetricsServer(config.metrics_listen, numbers, access, tls)
    metrics.start()
    logger.info("metrics on %s/metrics, health on /healthz", metrics.url)
    return metrics


def _collect_garbage_seldom() -> None:
    """Make the garbage collector ignore the objects of the start, and run only after many new objects.

    A turn of the loop creates thousands of objects, nearly all freed by their reference counts. A collection
    after every 700 objects took a tenth of the cost of a small request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _in_loop(mailbox: Mailbox, work: Callable[[], None]) -> None:
    """Run `work` on the loop; return when it is done. For a daemon thread."""
    done = threading.Event()

    def do() -> None:
        work()
        done.set()

    mailbox.post(do)
    done.wait()


def _stop(mirror: Mirror, mailbox: Mailbox, broker: Broker, server: Server) -> None:
    """End the loop, from another thread. End the mirror first: its appends need the loop."""
    mirror.stop()
    mailbox.post(lambda: broker.hand_over(server.stop))
