"""Which brokers count as alive while ZooKeeper comes back.

A ZooKeeper that was away for longer than a session has forgotten every broker, and each is listed again a
moment later. Clients that ask in between must not hear that the others are gone: some then forget them, the
coordinator of their group included. So whoever lost its own session goes on listing the brokers it knew,
until each is registered anew or as long as a session lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millrace.coordination.state import BrokerAddress


class Registration(NamedTuple):
    """A broker's record, and the ZooKeeper session that it goes with."""

    record: Mapping[str, Any]
    session: int

    @property
    def address(self) -> BrokerAddress:
        """Where the broker listens."""
        return BrokerAddress(self.record["host"], self.record["port"])


class Presence:
    """One member's view of the brokers; told of what is registered after every reading."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._session = 0
        self._known: Mapping[int, Registration] = {}
        self._awaited: Mapping[int, Registration] = {}
        self._until = 0.0

    def alive(self, session: int, registered: Mapping[int, Registration]) -> dict[int, BrokerAddress]:
        """By id, the brokers that are registered, all read in this session of ours, and those awaited."""
        if session != self._session:
            self._session, self._until = session, self._clock() + self._grace_s
            self._awaited = self._known
        waiting = self._clock() < self._until
        self._awaited = {
            broker: before
            for broker, before in self._awaited.items()
            # One that is as it was may be about to go: only a new registration says that a broker is back.
            if waiting and registered.get(broker, before).session == before.session
        }
        self._known = {**self._awaited, **registered}
        return {broker: each.address for broker, each in sorted(self._known.items())}

    def wait_s(self) -> float | None:
        """How long brokers are still awaited; None when nobody is."""
        return max(0.0, self._until - self._clock()) if self._awaited else None
