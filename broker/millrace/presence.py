"""Which brokers count as alive while ZooKeeper comes back.

A ZooKeeper that was away for longer than a session has forgotten every broker, and each is listed again a
moment later. Clients that ask in between must not hear that the others are gone: some then forget them, the
coordinator of their group included. So whoever lost its own session goes on listing the brokers it knew,
until they are back or as long as a session lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from millrace.cluster_state import BrokerAddress


class Presence:
    """One member's view of the brokers; told of what is registered after every reading."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._session = 0
        self._alive: Mapping[int, BrokerAddress] = {}
        self._awaited: Mapping[int, BrokerAddress] = {}
        self._until = 0.0

    def alive(self, session: int, registered: Mapping[int, BrokerAddress]) -> Mapping[int, BrokerAddress]:
        """By id, the brokers that are registered, seen in this session, and those that are awaited."""
        if session != self._session:
            self._session, self._awaited, self._until = session, self._alive, self._clock() + self._grace_s
        missing = self._awaited.keys() - registered.keys()
        if not missing or self._clock() >= self._until:
            self._awaited = {}
        self._alive = dict(sorted({**self._awaited, **registered}.items()))
        return self._alive

    def wait_s(self) -> float | None:
        """How long the absent ones are still awaited; None when nobody is."""
        return max(0.0, self._until - self._clock()) if self._awaited else None
