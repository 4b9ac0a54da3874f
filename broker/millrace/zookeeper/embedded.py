"""A real ZooKeeper for one machine, run by Java from the jars inside the installed PySpark.

It is used when no ensemble is given: one standalone server on 127.0.0.1, with its data in a directory of its
own. PySpark is only looked up, never imported. Of ZooKeeper's protocol only the check that the server answers
is used.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from millrace.errors import MillraceError
from millrace.installation import how_to_install
from millrace.process import end, start_child

JARS = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    "commons-io",
    "snappy-java",
    "netty-common",
]
"""The jars of PySpark that a standalone server needs: with them alone it takes 50 MB of memory, not 100."""
MIN_JAVA = 17
START_SECONDS = 30.0
STOP_SECONDS = 10.0
CHECK_SECONDS, SILENT_SECONDS = 5.0, 60.0
"""Pause between two checks whether the server answers; time without an answer after which it is given up."""
PORT_SECONDS = 3.0
"""Longest time that the Java process of a killed server may still hold its port."""
PORT_TRIES = 5
"""Ports tried when any free port will do: another process may take a port before the server does."""

# tickTime is the unit in which sessions expire. Only QuorumPeerMain starts purging; otherwise it passes a
# configuration without servers on to the standalone server.
SETTINGS = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data_dir}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
autopurge.snapRetainCount=3
autopurge.purgeInterval=24
"""
HEAP_MB = 512
"""Largest heap. It holds all that brokers write, and grows with it."""
JAVA_OPTIONS = (
    "-Xms8m",
    "-XX:MinHeapFreeRatio=10",  # keeps the heap as small as the data allows
    "-XX:MaxHeapFreeRatio=30",
    "-XX:+ExitOnOutOfMemoryError",  # otherwise the process stays and no longer answers
    "-Xss256k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.preAllocSize=64",  # KiB; the default makes every transaction log 64 MiB long
    "-Dslf4j.internal.verbosity=ERROR",
    "-Djava.net.preferIPv4Stack=true",
)


class _EndedAtOnce(MillraceError):
    """The server ended before it answered, for example because its port is taken."""


class ZooKeeper:
    """One running server. It ends when the process that started it ends for any reason, or by `stop`."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self._process = process

    @classmethod
    def start(cls, data_dir: Path, port: int = 0, heap_mb: int = HEAP_MB) -> ZooKeeper:
        """Start a server on 127.0.0.1:`port` (0: any free port).

        Raise MillraceError when it does not answer.
        """
        for _ in range(0 if port else PORT_TRIES - 1):
            with suppress(_EndedAtOnce):
                return cls._start(data_dir, port, heap_mb)
        return cls._start(data_dir, port, heap_mb)

    @classmethod
    def _start(cls, data_dir: Path, port: int, heap_mb: int) -> ZooKeeper:
        java, jars = find_java(), find_jars()
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = _lock(data_dir)
        try:
            port = free_port(port)
            settings = data_dir / "zoo.cfg"
            settings.write_text(SETTINGS.format(data_dir=data_dir.resolve(), port=port))
            command = [java, f"-Xmx{heap_mb}m", *JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
            command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)]
            with (data_dir / "zookeeper.err").open("wb") as errors:
                # The child inherits the lock: the directory stays locked as long as Java runs.
                process = start_child(
                    command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, pass_fds=(lock,)
                )
        finally:
            os.close(lock)
        server = cls(port, process)
        try:
            server._wait_until_ready(data_dir / "zookeeper.err")
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait(self) -> int | None:
        """Wait until the server has ended, and return its exit code. Return None once it has not answered for
        SILENT_SECONDS.
        """
        silent = 0  # checks, as time passes also while the whole machine stands still
        while silent * CHECK_SECONDS < SILENT_SECONDS:
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(CHECK_SECONDS)
            silent = 0 if answers("127.0.0.1", self.port) else silent + 1
        return None

    def stop(self) -> None:
        """End the server: SIGTERM, then SIGKILL when that does not help. A second call is harmless."""
        end(self._process, STOP_SECONDS)

    def __enter__(self) -> ZooKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self, errors: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers("127.0.0.1", self.port):
            if self._process.poll() is not None:
                lines = errors.read_text(errors="replace").strip().splitlines()
                reason = lines[-1] if lines else f"it left no message; is port {self.port} free?"
                raise _EndedAtOnce(f"ZooKeeper ended with exit code {self._process.returncode}: {reason}")
            if time.monotonic() > deadline:
                raise MillraceError(f"ZooKeeper does not answer after {START_SECONDS:.0f} s, see {errors}")
            time.sleep(0.02)


def answers(host: str, port: int) -> bool:
    """Return True when a ZooKeeper server that serves requests answers at the address."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Zookeeper version" in connection.recv(4096)
    except OSError:
        return False


def find_java() -> str:
    """Return the path of a Java of at least version 17, from JAVA_HOME or PATH.

    Raise MillraceError when no Java is found.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise MillraceError(f"no Java {where}: install Java {MIN_JAVA} or newer, or set JAVA_HOME to one")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
        version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    except (OSError, subprocess.TimeoutExpired):
        version = None
    if version is None:
        raise MillraceError(f"{java} does not report its version: install Java {MIN_JAVA} or newer")
    if int(version[1]) < MIN_JAVA:
        raise MillraceError(
            f"{java} is Java {version[1]}: install Java {MIN_JAVA} or newer, or set JAVA_HOME to one"
        )
    return java


def find_jars() -> list[Path]:
    """Return ZooKeeper's jars in the installed PySpark.

    Raise MillraceError if PySpark or a jar is missing.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MillraceError(
            f"no PySpark, whose jars hold ZooKeeper: {how_to_install('spark')}, or name your own ensemble"
        )
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    jars = []
    for name in JARS:
        versions = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not versions:
            raise MillraceError(f"{folder} has no {name} jar: install PySpark 4.3 again")
        jars.append(versions[-1])
    return jars


def _lock(data_dir: Path) -> int:
    """Lock the directory. After a starting process was killed, its Java still holds the lock for a moment."""
    lock, deadline = (
        os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o644),
        time.monotonic() + STOP_SECONDS,
    )
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise MillraceError(
                    f"another ZooKeeper uses {data_dir}: stop it or give another data directory"
                ) from None
        time.sleep(0.05)


def free_port(port: int) -> int:
    """Return the port once it is free, or any free port for 0. Raise MillraceError after PORT_SECONDS."""
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        with socket.socket() as probe:
            # As the server does: a port with only old connections in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                probe.listen(1)
                return int(probe.getsockname()[1])
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise MillraceError(
                        f"cannot listen on 127.0.0.1:{port}: {error.strerror}; end the process that uses"
                        " this port, or give another port"
                    ) from None
        time.sleep(0.05)
