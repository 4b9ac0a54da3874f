"""`millrace audit-reader`."""

from __future__ import annotations

import sys
import threading
from typing import Any

import click

from millrace.logs import start_logging
from millrace.printing import say
from millrace.service.options import door_options
from millrace.signals import stop_on_signals
from millrace.topics_file import VARIABLE, read_policies
from millrace_audit.commands.options import hush_requests, names_of, registry_option, zookeeper_option


@click.command("audit-reader")
@click.option("--cluster", metavar="NAME", required=True, help="Name of the cluster to count.")
@click.option("--tier", metavar="NAME", help="Tier of the cluster: its own name (the default), or `offline`.")
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of the cluster.")
@registry_option
@zookeeper_option
@click.option(
    "--new-cluster",
    is_flag=True,
    help="Accept this cluster in place of the tier's earlier cluster; without this option it is refused.",
)
@click.option(
    "--topics",
    default="",
    metavar="NAME,NAME",
    help="Topics to count, the same for all readers of a cluster; default: all except the audit topics.",
)
@click.option(
    "--topics-file",
    envvar=VARIABLE,
    default="",
    metavar="FILE",
    help="Settings of each topic, in TOML; the reader reads `fingerprint`.",
)
@click.option(
    "--interval-ms",
    type=click.IntRange(min=10),
    default=1000,
    show_default=True,
    help="Interval at which new messages are counted and the counts are published.",
)
@click.option(
    "--metrics-listen",
    default="",
    metavar="HOST:PORT",
    help="Address on which to serve /metrics for Prometheus, and /healthz.",
)
@door_options
def audit_reader(
    tier: str | None,
    topics: str,
    topics_file: str,
    metrics_listen: str,
    access_file: str,
    certificate: str,
    key: str,
    **named: Any,
) -> None:
    """Count every message of one cluster and publish the counts, until SIGTERM. Keeps no state of its own.

    Further readers with the same options share the partitions of the cluster, on any machine. When a reader
    ends or is killed, the other readers count its share.

    Example: millrace audit-reader --cluster dc1 --bootstrap 127.0.0.1:9192 --zookeeper 127.0.0.1:2181
    --registry http://127.0.0.1:8081
    """
    from millrace_audit.reader.numbers import ReaderNumbers, serve
    from millrace_audit.reader.reader import AuditReader, ReaderConfig

    start_logging()
    hush_requests()
    policies = read_policies(topics_file) if topics_file else {}
    tier = tier or named["cluster"]
    config = ReaderConfig(tier=tier, topics=names_of(topics), policies=policies, **named)
    stop = threading.Event()
    stop_on_signals(stop.set, limited=True)
    numbers = ReaderNumbers(config.tier)
    serve(numbers, metrics_listen, access_file, certificate, key)

    def ready() -> None:
        say(f"ready: audit-reader of {config.cluster} on {config.bootstrap.partition(',')[0]}")
        sys.stdout.flush()

    AuditReader(config, stop, numbers).run(ready)
