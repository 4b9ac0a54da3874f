"""`auditor`, `audit-reader` and `agent` run the audit; `millrace audit` asks it."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millrace.config import parse_time
from millrace.errors import MillraceError
from millrace.logs import start_logging
from millrace.service.access import AccessList
from millrace.service.options import door_options, tls_of
from millrace.signals import stop_on_signals
from millrace_audit import client
from millrace_audit.answer import to_json
from millrace_audit.show import print_bad, print_completeness
from millrace_registry.subjects import ENVIRONMENT, OPTION_HELP, Subjects

if TYPE_CHECKING:
    from millrace.service.web import WebServer
    from millrace_audit.auditor.auditor import Auditor

log = logging.getLogger("millrace.audit")

_registry_option = click.option(
    "--registry", envvar="MILLRACE_REGISTRY", metavar="URL", required=True, help="The schema registry."
)
_zookeeper_option = click.option(
    "--zookeeper",
    envvar="MILLRACE_ZOOKEEPER",
    metavar="HOST:PORT",
    required=True,
    help="The aggregate cluster's ZooKeeper: it keeps whose turn it is to count.",
)


@click.command(
    epilog="Example: millrace auditor --bootstrap 127.0.0.1:9392 --registry http://127.0.0.1:8081"
    " --zookeeper 127.0.0.1:2181 --origins dc1,dc2 --database-url sqlite:////var/lib/auditor.db"
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8082",
    show_default=True,
    help="Address to serve on; port 0 takes a free one.",
)
@click.option(
    "--database-url",
    envvar="MILLRACE_AUDITOR_DATABASE_URL",
    metavar="URL",
    default="sqlite:///auditor.db",
    show_default=True,
    help="sqlite:////PATH/FILE.db or postgresql://USER:PASSWORD@HOST/NAME.",
)
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of the aggregate cluster.")
@_registry_option
@_zookeeper_option
@click.option(
    "--origins",
    metavar="NAME,NAME",
    required=True,
    help="The clusters that are produced to: no window is final before each was heard of.",
)
@click.option(
    "--carried",
    metavar="REGEX",
    default="",
    help="Topics, by their whole name, that are proven when they are `carried`; others must be `complete`.",
)
@click.option(
    "--grace-s",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="A window can be final this long after its end at the earliest: how far clocks differ.",
)
@click.option(
    "--hello-patience-s",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="How long an instance that has only said hello is awaited, and a silent one is not yet named so.",
)
@click.option(
    "--fold-after-h",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="A complete window that has not changed for so many hours takes less room.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    help="A window that has not changed for so many days is deleted.",
)
@door_options
def auditor(
    listen: str,
    database_url: str,
    bootstrap: str,
    registry: str,
    zookeeper: str,
    origins: str,
    carried: str,
    grace_s: int,
    hello_patience_s: int,
    fold_after_h: int,
    keep_days: int,
    access_file: str,
    certificate: str,
    key: str,
) -> None:
    """Run the auditor: collect what producers, readers and loads report, and answer what is complete."""
    from millrace.service.web import WebServer
    from millrace_audit.auditor.app import build_app
    from millrace_audit.auditor.auditor import Auditor
    from millrace_audit.auditor.circumstances import AuditRules
    from millrace_audit.auditor.console import GroupsLook
    from millrace_audit.auditor.store import AuditStore

    names = _names(origins)
    if not names:
        raise MillraceError("--origins names no cluster: write --origins dc1,dc2")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else one line for every request to the registry
    try:
        re.compile(carried)
    except re.error as error:
        raise MillraceError(f"--carried {carried!r} is no regular expression: {error}") from None
    rules = AuditRules(
        origins=names,
        carried=carried,
        grace_ms=grace_s * 1000,
        hello_patience_ms=hello_patience_s * 1000,
        fold_after_ms=fold_after_h * 3_600_000,
        keep_ms=keep_days * 24 * 3_600_000,
    )
    with (
        closing(AuditStore(database_url)) as store,
        closing(Auditor(store, rules, bootstrap, registry, zookeeper)) as worker,
    ):
        worker.check()
        access = AccessList(access_file) if access_file else None
        app = build_app(store, rules, worker, GroupsLook(bootstrap), access)
        server = WebServer(app, listen, "auditor", tls_of(certificate, key))
        _serve_while_applying(server, worker)


def _serve_while_applying(server: WebServer, worker: Auditor) -> None:
    stop, failure = threading.Event(), list[Exception]()

    def apply() -> None:
        try:
            worker.run(stop)
        except Exception as error:
            log.exception("the audit topics are no longer applied")
            failure.append(error)
            server.stop()  # an auditor that no longer reads must not go on answering

    thread = threading.Thread(target=apply, name="audit-topics")
    thread.start()
    try:
        server.serve_until_stopped()
    finally:
        stop.set()
        thread.join()
    if failure:
        raise MillraceError(f"the auditor stopped: {failure[0]}")


@click.command(
    "audit-reader",
    epilog="Example: millrace audit-reader --cluster dc1 --bootstrap 127.0.0.1:9192"
    " --zookeeper 127.0.0.1:2181 --registry http://127.0.0.1:8081",
)
@click.option("--cluster", metavar="NAME", required=True, help="Name of the cluster to count.")
@click.option("--tier", metavar="NAME", help="What it stands for: its own name (the default), or `offline`.")
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of the cluster.")
@_registry_option
@_zookeeper_option
@click.option(
    "--new-cluster",
    is_flag=True,
    help="The tier's cluster was replaced by this one: without it a reader refuses another cluster.",
)
@click.option(
    "--topics", default="", metavar="NAME,NAME", help="Topics to count; without it all but the audit topics."
)
@click.option(
    "--interval-ms",
    type=click.IntRange(min=10),
    default=1000,
    show_default=True,
    help="How often it looks for new messages and publishes.",
)
@click.option(
    "--metrics-listen", metavar="HOST:PORT", help="Serve /metrics for Prometheus there, and /healthz."
)
@door_options
def audit_reader(
    tier: str | None,
    topics: str,
    metrics_listen: str | None,
    access_file: str,
    certificate: str,
    key: str,
    **named: Any,
) -> None:
    """Count every message of one cluster and publish the counts, until SIGTERM. Keeps no state of its own.

    A second reader of the same tier stands by until the first one ends.
    """
    from millrace_audit.reader.numbers import ReaderNumbers, serve
    from millrace_audit.reader.reader import AuditReader, ReaderConfig

    start_logging()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else one line for every request to the registry
    config = ReaderConfig(tier=tier or named["cluster"], topics=_names(topics), **named)
    stop = threading.Event()
    stop_on_signals(stop.set, limited=True)
    numbers = ReaderNumbers(config.tier)
    tls = tls_of(certificate, key)
    if metrics_listen:
        log.info("metrics on %s/metrics", serve(numbers, metrics_listen, access_file, tls))
    elif access_file or tls is not None:
        raise MillraceError("--access and --certificate are for the metrics: give --metrics-listen, too")

    def ready() -> None:
        click.echo(f"ready: audit-reader of {config.cluster} on {config.bootstrap.partition(',')[0]}")
        sys.stdout.flush()

    AuditReader(config, stop, numbers).run(ready)


@click.command(
    epilog="Example: millrace agent --cluster dc1 --bootstrap 127.0.0.1:9192 --registry http://127.0.0.1:8081"
    " --service shop --spool /var/lib/millrace-agent"
)
@click.option("--cluster", metavar="NAME", required=True, help="Name of the cluster to produce to.")
@click.option("--bootstrap", metavar="HOST:PORT", required=True, help="A broker of the cluster.")
@_registry_option
@click.option("--service", metavar="NAME", required=True, help="Whose events they are.")
@click.option("--server", metavar="NAME", help="Where they happen; by default this machine's name.")
@click.option(
    "--spool", metavar="DIR", required=True, help="Folder of its own for what the brokers do not have yet."
)
@click.option(
    "--spool-bytes",
    type=click.IntRange(min=16 << 20),
    default=1 << 30,
    show_default=True,
    help="Most that events may take there; beyond it requests are answered with 503.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8083",
    show_default=True,
    help="Address to take events on; port 0 takes a free one.",
)
@click.option(
    "--subject", "subjects", metavar="[TOPIC=]SUBJECT", multiple=True, envvar=ENVIRONMENT, help=OPTION_HELP
)
@click.option(
    "--follow",
    metavar="TOPIC=PATH",
    multiple=True,
    help="Take the lines of a file, an event in JSON each, also when it is rotated. Repeatable.",
)
@click.option(
    "--lateness-ms",
    type=click.IntRange(min=0),
    default=60_000,
    show_default=True,
    help="How old an event may be when it is sent; an older one opens its window again.",
)
@click.option(
    "--report-interval-ms",
    type=click.IntRange(min=10),
    default=10_000,
    show_default=True,
    help="How often it reports to the audit.",
)
@door_options
def agent(
    cluster: str,
    bootstrap: str,
    registry: str,
    service: str,
    server: str | None,
    spool: str,
    spool_bytes: int,
    listen: str,
    subjects: Sequence[str],
    follow: Sequence[str],
    lateness_ms: int,
    report_interval_ms: int,
    access_file: str,
    certificate: str,
    key: str,
) -> None:
    """Take events over HTTP and from files, for services that are not Python, and be their producer."""
    from millrace_audit.agent.agent import Agent, AgentConfig

    start_logging()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else one line for every request to the registry
    config = AgentConfig(
        cluster=cluster,
        bootstrap=bootstrap,
        registry=registry,
        service=service,
        server=server or socket.gethostname(),
        spool=Path(spool),
        spool_bytes=spool_bytes,
        listen=listen,
        subjects=Subjects.parse(subjects),
        follow={Path(path): topic for topic, path in _pairs(follow, "--follow TOPIC=PATH")},
        lateness_ms=lateness_ms,
        report_interval_ms=report_interval_ms,
        access_file=access_file,
        tls=tls_of(certificate, key),
    )
    with Agent(config) as running:
        running.serve()


def _pairs(words: Sequence[str], form: str) -> list[tuple[str, str]]:
    pairs = [word.partition("=") for word in words]
    for name, _, value in pairs:
        if not name or not value:
            raise MillraceError(f"{name or value!r} is not of the form {form}")
    return [(name, value) for name, _, value in pairs]


@click.command(
    epilog="Exit code: 0 when everything asked for is proven, 1 when it is not, 2 for a wrong option."
    "\n\nExample: millrace audit PageView --from 2015-05-17T10:00Z --to 2015-05-17T12:00Z"
)
@click.argument("topic", required=False)
@click.option("--from", "start", metavar="TIME", help="ISO 8601, UTC when it names no zone.")
@click.option("--to", "end", metavar="TIME", help="End of the time asked for, not included.")
@click.option(
    "--auditor",
    "url",
    metavar="URL",
    envvar="MILLRACE_AUDITOR",
    default="http://127.0.0.1:8082",
    show_default=True,
    help="The auditor to ask.",
)
@click.option(
    "--bad", "is_bad", is_flag=True, help="Every window that is not complete, over all time, the worst first."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most windows of --bad."
)
@click.option("--windows", is_flag=True, help="A line for each ten-minute window, not for each hour.")
@click.option("--history", "is_history", is_flag=True, help="Acceptances, and changes of final verdicts.")
@click.option(
    "--accept",
    "instance",
    type=int,
    metavar="INSTANCE",
    help="Go on without the word of a silent producer instance; needs --reason.",
)
@click.option("--accept-service", "service", metavar="NAME", help="The same of all silent ones of a service.")
@click.option("--server", metavar="NAME", help="With --accept-service: only those on that server.")
@click.option("--before", metavar="TIME", help="With --accept-service: only those last heard of before.")
@click.option(
    "--disown",
    is_flag=True,
    help="With one of both: what they have reported does not count, either. They were nobody.",
)
@click.option("--reason", metavar="TEXT", help="Why; it stays visible beside the windows.")
@click.option("--json", "as_json", is_flag=True, help="Print the auditor's answer for a script.")
@click.pass_context
def audit(
    context: click.Context,
    /,
    topic: str | None,
    start: str | None,
    end: str | None,
    url: str,
    windows: bool,
    as_json: bool,
    is_bad: bool,
    limit: int,
    is_history: bool,
    **acceptance: Any,
) -> None:
    """Ask whether every event of TOPIC has arrived everywhere, once: complete or not, and why."""
    if _accept(url, as_json=as_json, **acceptance) and topic is None:
        return
    if is_bad:
        found = client.bad(url, topic, limit)
        if as_json:
            click.echo(
                json.dumps([{"topic": name, "window": to_json(window)} for name, window in found], indent=1)
            )
        else:
            print_bad(found, limit)
        context.exit(1 if found else 0)
    if topic is None:
        raise MillraceError(
            "which topic? `millrace audit TOPIC --from TIME --to TIME`, or `millrace audit --bad`"
        )
    if start is None or end is None:
        if acceptance["reason"] is not None and start is None and end is None:
            return
        raise MillraceError("--from and --to are both needed: which time is asked for?")
    first, last = parse_time(start, "--from"), parse_time(end, "--to")
    if first >= last:
        raise MillraceError(f"--from {start} is not before --to {end}: give the earlier time first")
    if is_history:
        for said in client.history(url, topic, first, last):
            window = f" window {said['window']}" if said["window"] else ""
            click.echo(
                json.dumps(said) if as_json else f"{said['time']}{window} {said['who']}: {said['what']}"
            )
        return
    answer = client.completeness(url, topic, first, last)
    if as_json:
        click.echo(json.dumps(to_json(answer), indent=1))
    else:
        print_completeness(answer, by_window=windows)
    context.exit(0 if answer.proven else 1)


def _accept(
    url: str,
    *,
    as_json: bool,
    instance: int | None,
    service: str | None,
    server: str | None,
    before: str | None,
    disown: bool,
    reason: str | None,
) -> bool:
    """Say what the operator accepts; False when that is nothing."""
    if (instance is None and service is None) != (reason is None):
        raise MillraceError("--accept INSTANCE or --accept-service NAME needs --reason TEXT: give both")
    if instance is not None and service is not None:
        raise MillraceError("--accept and --accept-service are two ways to say it: give one")
    if service is None and (server is not None or before is not None):
        raise MillraceError("--server and --before belong to --accept-service NAME: give it, too")
    if reason is None:
        if disown:
            raise MillraceError("--disown belongs to --accept or --accept-service: give one, too")
        return False
    done = "disowned" if disown else "accepted"
    if instance is not None:
        client.accept(url, instance, reason, disown=disown)
        click.echo(f"{done}: instance {instance} ({reason})", err=as_json)
    elif service is not None:
        until = None if before is None else parse_time(before, "--before")
        accepted = client.accept_service(url, service, reason, server=server, before=until, disown=disown)
        click.echo(f"{done}: {len(accepted)} instances of service {service} ({reason})", err=as_json)
    return True


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
