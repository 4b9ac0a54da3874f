"""Quotas by user: bytes a second written and read, and a share of the loop's time.

All connections of a user share one meter. Use beyond a quota becomes a debt: the broker's answers state a
throttle time, and meanwhile the broker does not read the user's connections. Values in, values out: no
ZooKeeper and no sockets are used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol, TypeAlias

BURST_S = 1.0
"""Largest burst, in seconds of the quota's rate."""
MAX_DEBT_S = 30.0
"""Largest debt, in seconds of the quota's rate: clients give up when no answer comes for long."""
MAX_METERS = 10_000
"""Most users whose debts are kept. The oldest is forgotten first, and has no debt when it comes again."""


class Kind(IntEnum):
    """Kinds of use that are counted."""

    WRITTEN = 0
    READ = 1
    LOOP = 2
    """Seconds of processor time that the loop or a thread uses for the user."""


KEYS = {"producer_byte_rate": Kind.WRITTEN, "consumer_byte_rate": Kind.READ, "request_percentage": Kind.LOOP}
"""Kafka's names of quotas."""
Limits: TypeAlias = Mapping[str, float]
"""One user's quotas, by Kafka's names."""


class QuotaLimits(Protocol):
    """The quotas of all users."""

    @property
    def limits(self) -> Mapping[str | None, Limits]:
        """Quotas by user; None: the quotas of every user without a quota of its own. Replaced whole."""


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
        """Adopt new quotas. An unchanged quota keeps its debt."""
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
