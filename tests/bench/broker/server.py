"""Server processes of the systems: started as children, awaited by their port, ended by their own ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.broker import meter
from tests.bench.broker.system import Missing
from tests.support import start_for_the_test_run

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class ServerProcess:
    """One child process; what it prints goes to a file that the message of a failed start quotes."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = log
        with open(log, "ab") as output:
            self._process = start_for_the_test_run(
                arguments,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_for_port(self, port: int) -> None:
        """Return once it accepts connections; Missing with its last words when it does not come up."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.poll() is not None:
                raise Missing(f"{self.name} ended while it started: {self._last_words()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise Missing(f"{self.name} did not start: {self._last_words()}") from None
                time.sleep(0.1)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to it and every process it started."""
        processes = meter.tree(self.pid)
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in processes[1:]:
            if self._is_orphan_of(pid):
                os.kill(pid, signal.SIGKILL)

    def _is_orphan_of(self, pid: int) -> bool:
        """True while a descendant is still there: its group is ours, so a reused number is not hit."""
        try:
            return os.getpgid(pid) == os.getpgid(0)
        except ProcessLookupError:
            return False

    def _last_words(self) -> str:
        return (
            " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-5:]) or "it said nothing"
        )


def apt_install(package: str, present: Path) -> None:
    """Install a Debian package unless its file is there; the service that starts with it is stopped again."""
    if present.exists():
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
    print(f"installing {package} (apt-get install {package})", flush=True)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Missing(f"{package} is not installed and there is no apt-get: install it") from None
    if done.returncode != 0 or not present.exists():
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(
            f"{package} is not installed and could not be: {words[-1] if words else 'apt-get failed'}"
        )
    subprocess.run(["service", package, "stop"], capture_output=True, check=False)


def package_version(package: str) -> str:
    """The version of an installed Debian package, without Debian's own suffix."""
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Version}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.partition("-")[0].partition("+")[0] or "?"
