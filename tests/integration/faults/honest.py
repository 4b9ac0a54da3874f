"""An honest producer and consumer that must not notice what others do to the broker, and its memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from millrace.client.cluster_client import ClusterClient
from tests.integration.faults.wire import Wire, batch

PAUSE_S = 0.02


class HonestPair:
    """Produces one message after another with acks=all and fetches each; a context manager.

    `worst_s` is the longest time from sending a message to having it back.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        with ClusterClient(bootstrap, timeout_s=20) as client:
            client.create_topic(topic, 1)
        self.worst_s = 0.0
        self.sent = 0
        self.problem: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="honest", daemon=True)

    def __enter__(self) -> HonestPair:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        if error is None:
            assert self.problem is None, self.problem

    def _run(self) -> None:
        try:
            with Wire(self._bootstrap, timeout_s=30) as wire:
                while not self._stop.is_set():
                    self._once(wire)
                    time.sleep(PAUSE_S)
        except Exception as error:  # the thread's end must not hide why
            self.problem = f"the honest pair failed after {self.sent} messages: {error!r}"

    def _once(self, wire: Wire) -> None:
        sent = batch(f"honest {self.sent}")
        begun = time.monotonic()
        error, base = wire.produce(self._topic, sent)
        assert error == 0, f"produce answers {error}"
        error, records = wire.fetch(self._topic, base)
        assert (error, records[16:]) == (0, sent[16:]), f"fetch answers {error}"
        self.worst_s = max(self.worst_s, time.monotonic() - begun)
        self.sent += 1


def forget_peak(pid: int) -> None:
    """Let the most memory that a process ever had be what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process: now, and at most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
    return int(fields["VmRSS"].split()[0]) << 10, int(fields["VmHWM"].split()[0]) << 10
