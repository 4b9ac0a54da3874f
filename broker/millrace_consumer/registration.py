"""A consumer's entry in the consumer registry, and the time for which the consumer may trust that the entry
exists.

Heartbeats prove the registration for a limited time. After ZooKeeper last received a message from a consumer,
other consumers cannot get its partitions for the whole session timeout. A heartbeat is a write, because a
server that is cut off from its ensemble still answers reads. A heartbeat is trusted for two thirds of the
timeout, from the moment when it was sent. The last third allows for clocks that run at different speeds, and
for the time in which an ensemble reports a live session to its leader.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from millrace.zookeeper.session import Session
from millrace_broker.coordination.groups import ConsumerRegistry, Fence, StreamsMember, encode_member

logger = logging.getLogger("millrace.consumer.registration")

TRUSTED = 2 / 3
HEARTBEATS_PER_TIMEOUT = 6


class Registration:
    """One consumer's registration. A lost registration is replaced by a new one with a new consumer id."""

    def __init__(
        self,
        session: Session,
        registry: ConsumerRegistry,
        group: str,
        topics: Mapping[str, int],
        on_loss: Callable[[], None],
    ) -> None:
        self._session, self._registry, self._group, self._on_loss = session, registry, group, on_loss
        self._member = StreamsMember(topics=topics, host=socket.gethostname())
        self._data = encode_member(self._member)
        self._trusted_until = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._prove, name=f"consumer {group} heartbeat", daemon=True)
        self.consumer_id = self._next_id = ""
        self.fence: Fence | None = None
        """Fence of the registration; None while the consumer is not registered."""

    def proves(self, fence: Fence) -> bool:
        """Return True if no other consumer can own partitions that this consumer claimed under `fence`."""
        return self.fence is fence and time.monotonic() < self._trusted_until

    def register(self) -> Fence:
        """Return the fence of this consumer's registration; register first if necessary.

        Blocks. Raise BrokerError when ZooKeeper refuses.
        """
        if self.fence is None:
            # The id is kept after a try whose answer was lost: otherwise the first id might stay registered
            # without reading anything.
            self._next_id = self._next_id or f"{self._member.host}-{os.getpid()}-{secrets.token_hex(4)}"
            self.fence = self._registry.register(self._group, self._next_id, self._member)
            self.consumer_id, self._next_id = self._next_id, ""
            logger.info("group %s: registered as %s", self._group, self.consumer_id)
            self._heartbeat()
            if not self._thread.is_alive():
                self._thread.start()
        return self.fence

    def lost(self) -> None:
        self._trusted_until, self.fence = 0.0, None

    def stop(self) -> None:
        self._closing.set()
        self._trusted_until = 0.0

    def close(self) -> None:
        """Stop the heartbeats and remove the consumer from the registry, if it is registered. Blocks."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        fence, self.fence = self.fence, None
        if fence is not None:
            self._registry.unregister(self._group, fence)

    def _prove(self) -> None:
        while not self._closing.wait(self._session.timeout_ms / 1000 / HEARTBEATS_PER_TIMEOUT):
            self._heartbeat()

    def _heartbeat(self) -> None:
        fence = self.fence
        if fence is None or not self._session.client.connected:
            return
        timeout = self._session.timeout_ms / 1000
        began = time.monotonic()
        try:
            self._session.client.set_async(fence.checks[0][0], self._data).get(timeout=timeout)
        except NoNodeError:
            if self.fence is fence:
                logger.warning("group %s: the registration of %s was lost", self._group, self.consumer_id)
                self.lost()
                self._on_loss()
        except (KazooException, KazooTimeoutError):
            return  # nothing is proven; the next heartbeat may succeed
        else:
            if self.fence is fence and not self._closing.is_set():
                self._trusted_until = began + TRUSTED * timeout
