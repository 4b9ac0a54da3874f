"""A PostgreSQL server for tests, where one is installed: its own folder, its own port, ended with the run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class Server:
    """A PostgreSQL server with an empty database, in a folder of its own."""

    def __init__(self, folder: str) -> None:
        programs = _programs()
        assert programs is not None, "ask installed() first"
        # The server refuses to run as root, so root starts it as the user that its package has made. Linux
        # forgets on a change of the user what a process gets when its parent ends, so that is said again.
        as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=KILL"]
        self.folder, self._port = folder, free_port()
        initdb = f"{programs}/initdb -D data -U millrace --auth=trust --no-sync --encoding=UTF8 --locale=C"
        subprocess.run([*as_user, *initdb.split()], cwd=folder, check=True, capture_output=True)
        server = f"{programs}/postgres -D data -k {folder} -h 127.0.0.1 -p {self._port}"
        self._command = [*as_user, *server.split()]
        self.url = f"postgresql://millrace@127.0.0.1:{self._port}/postgres"
        self.start()

    def start(self) -> None:
        """Start it, again after a kill, and wait until it takes connections."""
        log = Path(self.folder, "log")
        with log.open("w") as output:
            self._process = start_for_the_test_run(self._command, cwd=self.folder, stderr=output)
        wait_until("PostgreSQL's ready line", lambda: "ready to accept" in log.read_text())

    def kill(self) -> None:
        """SIGKILL to the server and to each of its processes at once, as when the machine fails."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self._process.wait(30)
        wait_until(
            "PostgreSQL is gone", lambda: not any(Path(f"/proc/{child}").exists() for child in children)
        )

    def stop(self) -> None:
        """End it without waiting for its clients."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)


@contextmanager
def server() -> Iterator[Server]:
    """A server that runs, and is stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="millrace-postgres-") as folder:
        running = Server(folder)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database on a server that is stopped at the end."""
    with server() as running:
        yield running.url
