"""A consumer of a group as a process that a test may kill, and consumers in threads that it can look into.

Run as `python -m tests.consuming ZOOKEEPER CLUSTER GROUP TOPIC STREAMS FILE`, it appends a line `partition
offset value` to FILE for each message, before it asks for the next one. It takes 3 ms for each, so that it is
behind what it has pulled, and commits five times a second.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from millrace_consumer import Consumer, Message, MessageStream
from tests.support import REPOSITORY, start_for_the_test_run

SESSION_MS = 2000
THERE, BACK = "there", "back"


class Proxy:
    """A way to a server that can be cut: connections stay open, and nothing passes any more."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stalled: frozenset[str] = frozenset()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *ways: str) -> None:
        """Let nothing pass from now on, or nothing in one direction only: `there` or `back`."""
        self._stalled = frozenset(ways or (THERE, BACK))

    def break_off(self) -> None:
        """Close what is connected, and answer nothing that connects from now on."""
        self.cut()
        self._break()

    def mend(self) -> None:
        """Break what is connected, and let what connects from now on pass."""
        self._stalled = frozenset()
        self._break()

    def _break(self) -> None:
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """Close every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                if len(self._stalled) < 2:
                    try:
                        far = socket.create_connection(self._server)
                    except OSError:  # it is down
                        near.close()
                        continue
                    self._sockets.append(far)
                    for way in ((near, far, THERE), (far, near, BACK)):
                        threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if way not in self._stalled:
                    target.sendall(data)
        if way not in self._stalled:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


class ConsumerProcess:
    """One consumer in a process of its own."""

    def __init__(
        self, zookeeper: str, cluster: str, group: str, topic: str, streams: int, file: Path
    ) -> None:
        self.file = file
        arguments = [zookeeper, cluster, group, topic, str(streams), str(file)]
        self._process = start_for_the_test_run(
            [sys.executable, "-m", "tests.consuming", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'broker'}"},
            stdin=subprocess.PIPE,
        )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """Have it close its consumer and end."""
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0

    @property
    def messages(self) -> list[tuple[int, int, str]]:
        """(partition, offset, value) of what it has handled; a line cut by a kill is left out."""
        if not self.file.exists():
            return []
        whole, _, _ = self.file.read_text().rpartition("\n")
        rows = [line.split(" ", 2) for line in whole.splitlines()]
        return [(int(partition), int(offset), value) for partition, offset, value in rows]


@dataclass(slots=True)
class Reader:
    """A consumer in this process; a thread for each stream collects what it is handed."""

    consumer: Consumer
    threads: list[threading.Thread]
    messages: list[Message]

    @classmethod
    def start(cls, consumer: Consumer, topics: dict[str, int]) -> Reader:
        """Read these topics, with so many streams each, until `close`."""
        reader = cls(consumer, [], [])
        for streams in consumer.create_message_streams(topics).values():
            for stream in streams:
                thread = threading.Thread(target=reader._collect, args=(stream,), daemon=True)
                thread.start()
                reader.threads.append(thread)
        return reader

    def _collect(self, stream: MessageStream) -> None:
        for message in stream:
            self.messages.append(message)

    @property
    def values(self) -> list[bytes | None]:
        """The values in the order they came."""
        return [message.value for message in self.messages]

    def close(self) -> None:
        """Close the consumer and wait for the threads."""
        self.consumer.close()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def main() -> None:
    """Consume until standard input ends."""
    zookeeper, cluster, group, topic, streams, file = sys.argv[1:]
    consumer = Consumer(zookeeper, cluster, group, commit_interval_ms=200, session_timeout_ms=10_000)
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def collect(stream: MessageStream) -> None:
        for message in stream:
            time.sleep(0.003)
            value = (message.value or b"").decode()
            os.write(out, f"{message.partition} {message.offset} {value}\n".encode())

    threads = [
        threading.Thread(target=collect, args=(stream,))
        for stream in consumer.create_message_streams({topic: int(streams)})[topic]
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    consumer.close()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
