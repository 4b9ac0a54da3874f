"""Quotas by user: bytes a second written and read, and a share of the loop's time.

A user's connections share one meter. What a user takes beyond a quota is lent. The broker tells its clients
how long to wait, and does not read their connections meanwhile. Values in, values out: knows no ZooKeeper and
no sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol, TypeAlias

BURST_S = 1.0
"""Most that may be taken at once, in the time that it takes to earn it."""
MAX_DEBT_S = 30.0
"""Most that is lent, in the time that it takes to pay it back: clients give up when nothing comes."""
MAX_METERS = 10_000
"""Most users whose debts are known; the oldest is forgotten first, and owes nothing when it comes again."""


class Kind(IntEnum):
    """Kinds of use that are counted."""

    WRITTEN = 0
    READ = 1
    LOOP = 2
    """Seconds of the processor, used by the loop or by a thread that works for the user."""


KEYS = {"producer_byte_rate": Kind.WRITTEN, "consumer_byte_rate": Kind.READ, "request_percentage": Kind.LOOP}
"""Kafka's names of quotas."""
Limits: TypeAlias = Mapping[str, float]
"""One user's quotas, by Kafka's names."""


class QuotaLimits(Protocol):
    """The quotas of all users."""

    @property
    def limits(self) -> Mapping[str | None, Limits]:
        """Quotas by user; None: those of every user without the quota of its own. Replaced whole."""


class Meter:
    """The recent use of one user; on the loop."""

    def __init__(
        self,
        book: QuotaLimits,
        user: str,
        clock: Callable[[], float] = time.monotonic,
        throttled_s: list[float] | None = None,
    ) -> None:
        self._book, self._user, self._clock = book, user, clock
        self.throttled_s = [0.0] * len(Kind) if throttled_s is None else throttled_s
        """Seconds of throttling that responses asked for, by kind."""
        self._limits: Mapping[str | None, Limits] | None = None
        self._rates: list[float | None] = [None] * len(Kind)
        self._levels, self._filled_at = [0.0] * len(Kind), [0.0] * len(Kind)

    def took(self, kind: Kind, amount: float) -> float:
        """Count `amount`; return the seconds that the user must wait now."""
        if self._book.limits is not self._limits:
            self._read()
        rate = self._rates[kind]
        if rate is None:
            return 0.0
        now = self._clock()
        earned = self._levels[kind] + (now - self._filled_at[kind]) * rate
        level = max(min(earned, BURST_S * rate) - amount, -MAX_DEBT_S * rate)
        self._levels[kind], self._filled_at[kind] = level, now
        return max(0.0, -level / rate)

    def wait_s(self) -> float:
        """Return the seconds that the user must wait, over all kinds of use."""
        return max(self.took(kind, 0.0) for kind in Kind)

    def _read(self) -> None:
        """Take over new quotas; a quota that is unchanged keeps its debt."""
        self._limits = self._book.limits
        known = {**self._limits.get(None, {}), **self._limits.get(self._user, {})}
        for key, kind in KEYS.items():
            rate = known.get(key)
            if rate is not None and kind is Kind.LOOP:
                rate /= 100
            if rate != self._rates[kind]:
                self._rates[kind] = rate
                self._levels[kind], self._filled_at[kind] = BURST_S * (rate or 0.0), self._clock()


class Meters:
    """The meters of a broker's users."""

    def __init__(self, book: QuotaLimits) -> None:
        self._book = book
        self.throttled_s = [0.0] * len(Kind)
        """Seconds of throttling that responses asked for, by kind; of all users."""
        self._meters: dict[str, Meter] = {}

    def of(self, principal: str) -> Meter:
        user = principal.removeprefix("User:")
        meter = self._meters.get(user)
        if meter is None:
            if len(self._meters) >= MAX_METERS:
                del self._meters[next(iter(self._meters))]
            meter = self._meters[user] = Meter(self._book, user, throttled_s=self.throttled_s)
        return meter
