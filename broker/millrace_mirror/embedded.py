"""The mirror inside a broker: for each origin a thread that watches it, and one for each of its brokers.

These are the 2011 paper's embedded consumers. Whatever the number of topics, an origin takes one thread, and
one more for each of its brokers that leads a partition copied here. A broker that is down, slow or faulty
delays only its own partitions. Appends go through a MirrorTarget; the module does not depend on the broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from millrace.config import OriginConfig
from millrace.records.topic_partition import TopicPartition
from millrace_broker.allowance import Allowance
from millrace_broker.coordination.cluster import Cluster
from millrace_mirror.puller import ANSWER_BYTES, BrokerPuller, MirrorTarget, Pull
from millrace_mirror.states import MirrorState, MirrorStates, State
from millrace_mirror.watch import CopyRegistry, OriginWatch

STOP_SECONDS = 2.0


class Mirror:
    """The mirrors of all origins of one broker."""

    def __init__(
        self, origins: Mapping[str, OriginConfig], broker_id: int, cluster: Cluster, target: MirrorTarget
    ) -> None:
        self.states = MirrorStates()
        self._origins = [
            CopiedOrigin(name, config, broker_id, cluster, target, self.states)
            for name, config in origins.items()
        ]
        cluster.on_change(self._wake)

    def start(self) -> None:
        """Start copying; call it once the broker can take appends."""
        for origin in self._origins:
            origin.start()

    def stop(self) -> None:
        """Stop copying. A thread that still waits for an origin keeps running, but appends nothing."""
        threads = [thread for origin in self._origins for thread in origin.stop()]
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _wake(self) -> None:
        for origin in self._origins:
            origin.watch.wake()


class CopiedOrigin:
    """One origin's threads. Only its OriginWatch assigns partitions to the pullers."""

    def __init__(
        self,
        name: str,
        config: OriginConfig,
        broker_id: int,
        cluster: CopyRegistry,
        target: MirrorTarget,
        states: MirrorStates,
    ) -> None:
        self.watch = OriginWatch(name, config, broker_id, cluster, states, self._assign)
        self._name, self._client_id = name, f"millrace-mirror-{broker_id}"
        self._security = config.security
        self._target, self._states = target, states
        self._allowance = Allowance(config.max_bytes_per_second, ANSWER_BYTES)
        self._lock = threading.Lock()
        self._stopped = False
        self._pulls: dict[TopicPartition, Pull] = {}
        self._pullers: dict[int, BrokerPuller] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._start(self.watch)

    def stop(self) -> list[threading.Thread]:
        with self._lock:
            self._stopped = True
            self.watch.stop()
            for puller in self._pullers.values():
                puller.stop()
            return self._threads

    def _start(self, thread: threading.Thread) -> None:
        self._threads = [running for running in self._threads if running.is_alive()] + [thread]
        thread.start()

    def _assign(self, addresses: Mapping[int, tuple[str, int]], wanted: list[Pull]) -> None:
        """Assign every partition to the thread of the origin's broker that leads it."""
        former, pulls = self._pulls, dict[TopicPartition, Pull]()
        for pull in wanted:
            current = former.get(pull.topic_partition)
            pulls[pull.topic_partition] = current if current is not None and current.is_same(pull) else pull
        self._distribute(addresses, pulls)
        for name, pull in former.items():  # last: until now their former threads may have reported states
            if name not in pulls or pulls[name].target != pull.target:
                self._states.forget(pull.origin.topic, pull.target)
        for pull in pulls.values():
            if pull.leader not in addresses:
                detail = f"no broker of {self._name} leads it now"
                state = MirrorState(pull.origin, State.WAITING, detail, pull.high_watermark)
                self._states.put(pull.origin.topic, pull.target, state)

    def _distribute(
        self, addresses: Mapping[int, tuple[str, int]], pulls: dict[TopicPartition, Pull]
    ) -> None:
        shares: dict[int, dict[TopicPartition, Pull]] = {}
        for name, pull in pulls.items():
            if pull.leader in addresses:
                shares.setdefault(pull.leader, {})[name] = pull
        with self._lock:
            if self._stopped:
                return
            self._pulls = pulls
            for broker in self._pullers.keys() - shares.keys():
                self._pullers.pop(broker).stop()
            for broker, share in shares.items():
                if broker in self._pullers:
                    self._pullers[broker].assign(addresses[broker], share)
                    continue
                puller = self._pullers[broker] = BrokerPuller(
                    f"{self._name} broker {broker}",
                    self._client_id,
                    self._target,
                    self._states,
                    self._allowance,
                    self.watch.wake,
                    self._security,
                )
                puller.assign(addresses[broker], share)
                self._start(puller)
