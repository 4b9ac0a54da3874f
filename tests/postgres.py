"""A PostgreSQL server for tests, where one is installed: its own folder, its own port, ended with the run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers import free_port
from tests.support import start_for_the_test_run, wait_until


def _programs() -> Path | None:
    """The folder of PostgreSQL's programs; Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = Path(found) if found else debian[-1] if debian else None
    return program.parent if program else None


def installed() -> bool:
    """True when a server and its driver are there."""
    return _programs() is not None and importlib.util.find_spec("psycopg") is not None


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database on a server that is stopped at the end."""
    programs = _programs()
    assert programs is not None, "ask installed() first"
    # The server refuses to run as root, so root starts it as the user that its package has made.
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="millrace-postgres-") as folder:
        if user is not None:
            shutil.chown(folder, user)
        port = free_port()
        initdb = f"{programs}/initdb -D data -U millrace --auth=trust --no-sync --encoding=UTF8 --locale=C"
        subprocess.run(initdb.split(), user=user, cwd=folder, check=True, capture_output=True)
        log = Path(folder, "log")
        postgres = f"{programs}/postgres -D data -k {folder} -h 127.0.0.1 -p {port}"
        with log.open("w") as output:
            server = start_for_the_test_run(
                lambda ends_with_us: subprocess.Popen(
                    postgres.split(), user=user, cwd=folder, stderr=output, preexec_fn=ends_with_us
                )
            )
        try:
            wait_until("PostgreSQL's ready line", lambda: "ready to accept" in log.read_text())
            yield f"postgresql://millrace@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for its clients
            server.wait(30)
