"""`millrace auditor`."""

from __future__ import annotations

import gc
import re
import threading
from contextlib import closing
from typing import Any

import click

from millrace.errors import MillraceError
from millrace.service.access import AccessList
from millrace.service.options import door_options, tls_of
from millrace.topics_file import VARIABLE, read_policies
from millrace_audit.auditor.options import RUNBOOKS, AuditOptions
from millrace_audit.commands.options import hush_requests, names_of, registry_option, zookeeper_option


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8082",
    show_default=True,
    help="Address to serve on; port 0 takes a free port.",
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
@registry_option
@zookeeper_option
@click.option(
    "--origins",
    metavar="NAME,NAME",
    required=True,
    help="The clusters that producers produce to: no window is final before each has reported.",
)
@click.option(
    "--carried",
    metavar="REGEX",
    default="",
    help="Pattern of whole topic names: these topics are proven when they are `carried`; "
    "others must be `complete`.",
)
@click.option(
    "--topics-file",
    metavar="FILE",
    envvar=VARIABLE,
    default="",
    help="Settings of each topic, in TOML; the auditor reads `proof`, `silent_after` and `owner`.",
)
@click.option(
    "--runbooks",
    metavar="URL",
    default=RUNBOOKS,
    show_default=True,
    help="Address of your copy of the runbooks, to which incidents link.",
)
@click.option(
    "--grace-s",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Shortest time from a window's end to its final verdict, because clocks differ.",
)
@click.option(
    "--hello-patience-s",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="Time to wait for an instance that has sent only a hello; after this time a late "
    "instance is silent.",
)
@click.option(
    "--fold-after-h",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Store a complete window in less space when it has not changed for this many hours.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    help="Delete a window when it has not changed for this many days.",
)
@door_options
def auditor(
    listen: str,
    database_url: str,
    bootstrap: str,
    registry: str,
    zookeeper: str,
    access_file: str,
    certificate: str,
    key: str,
    **words: Any,
) -> None:
    """Run the auditor: collect what producers, readers and loads report, and answer what is complete.

    Example: millrace auditor --bootstrap 127.0.0.1:9392 --registry http://127.0.0.1:8081 --zookeeper
    127.0.0.1:2181 --origins dc1,dc2 --database-url sqlite:////var/lib/auditor.db
    """
    from millrace.service.web import WebServer
    from millrace_audit.auditor.auditor import Auditor
    from millrace_audit.auditor.lease import Lease
    from millrace_audit.auditor.service.app import build_app
    from millrace_audit.auditor.service.cluster_look import ClusterLook
    from millrace_audit.auditor.store import AuditStore

    options = _options(**words)
    hush_requests()
    with (
        closing(AuditStore(database_url, Lease())) as store,
        closing(Auditor(store, options, bootstrap, registry, zookeeper)) as worker,
    ):
        worker.check()
        access = AccessList(access_file) if access_file else None
        app = build_app(store, options, worker, ClusterLook(bootstrap), access)
        server = WebServer(app, listen, "auditor", tls_of(certificate, key))
        # Objects that exist by now stay. Each collection that scanned them took 70 ms of a page's time.
        gc.freeze()
        stop = threading.Event()
        applying = server.start_beside("reader of the audit topics", lambda: worker.run(stop))
        try:
            server.serve_until_stopped()
        finally:
            stop.set()
            applying.join()


def _options(
    *,
    origins: str,
    carried: str,
    topics_file: str,
    runbooks: str,
    grace_s: int,
    hello_patience_s: int,
    fold_after_h: int,
    keep_days: int,
) -> AuditOptions:
    names = names_of(origins)
    if not names:
        raise MillraceError("--origins names no cluster: write --origins dc1,dc2")
    try:
        re.compile(carried)
    except re.error as error:
        raise MillraceError(f"--carried {carried!r} is no regular expression: {error}") from None
    return AuditOptions(
        origins=names,
        carried=carried,
        policies=read_policies(topics_file) if topics_file else {},
        grace_ms=grace_s * 1000,
        hello_patience_ms=hello_patience_s * 1000,
        fold_after_ms=fold_after_h * 3_600_000,
        keep_ms=keep_days * 24 * 3_600_000,
    )
