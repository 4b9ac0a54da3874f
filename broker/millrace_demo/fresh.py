"""Fresh rows in the demo: a resident loader beside the producers, and what a reader of branch `live` sees.

The loader is `millrace load --follow --live`. It ends before the DAG begins, with a load of what it has read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import no_topic
from millrace.errors import MillraceError
from millrace.process import start_child
from millrace_demo.table import live_rows, metadata_location
from millrace_demo.up import Endpoints

TOPIC = "PageView"
"""Topic whose fresh rows are shown. The brokers mirror it, so that it needs no task of the DAG."""
EVERY = "1s"
TOPIC_S = 60.0
"""Time in seconds in which the mirror must create the topic."""
STOP_S = 120.0
"""Time in seconds in which the loader must make its last load."""


@contextmanager
def resident_loader(endpoints: Endpoints, scratch: Path, message_format: str) -> Iterator[None]:
    """Run a resident loader of TOPIC for the block, and let it make a load of what it has read at the end.

    Raise MillraceError if it fails, or if the aggregate cluster does not get the topic.
    """
    _await_topic(endpoints)
    command = [sys.executable, "-m", "millrace.cli", "load", TOPIC, "--follow", "--live", "--every", EVERY]
    command += ["--warehouse", str(scratch / "warehouse"), "--format", message_format]
    command += ["--bootstrap", endpoints.bootstraps[endpoints.aggregate]]
    environment = {**os.environ, "MILLRACE_REGISTRY": endpoints.registry_url}
    if endpoints.security is not None:
        environment["MILLRACE_CLIENT"] = str(endpoints.security.client_file("loads"))
    log = scratch / "logs" / "load.log"
    with log.open("w") as output:
        loader = start_child(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        loader.terminate()
        try:
            code = loader.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise MillraceError(f"the resident loader did not end within {STOP_S:g} s: see {log}") from None
        if code:
            raise MillraceError(f"the resident loader failed: see {log}")
    finally:
        loader.kill()


def _await_topic(endpoints: Endpoints) -> None:
    """Wait until the aggregate cluster has TOPIC: your own MirrorMaker 2 creates it only after a while."""
    bootstrap, deadline = endpoints.bootstraps[endpoints.aggregate], time.monotonic() + TOPIC_S
    with ClusterClient(bootstrap, security=endpoints.client("loads")) as client:
        while not client.names_there(TOPIC):
            if time.monotonic() > deadline:
                raise no_topic(TOPIC, bootstrap)
            time.sleep(0.2)


def rows_once_shown(warehouse: Path, expected: int, within_s: float) -> tuple[int, str, float]:
    """Return the rows of branch `live`, their reader, and the time in seconds until all expected were there.

    If they are not there in time, the rows are those of the last look.
    """
    began, rows, reader = time.monotonic(), 0, "pyiceberg"
    while True:
        location = metadata_location(warehouse, TOPIC)
        if location is not None:
            rows, reader = live_rows(location)
        took = time.monotonic() - began
        if rows >= expected or took > within_s:
            return rows, reader, took
        time.sleep(0.2)
