"""The allowance of bytes read from other brokers: a bucket that fills at a steady rate.

Shared by the threads that read from one origin, or from all leaders. Bytes beyond the bucket (a batch comes
whole, or an answer was in flight) are paid back by waiting. In any period the bytes taken are at most the
rate times the period, one bucket, and one answer of each of these brokers. Nothing is ever dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Allowance:
    """A token bucket over bytes; without a rate no reader ever waits."""

    def __init__(
        self, bytes_per_second: int | None, largest_answer: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self._clock = bytes_per_second, clock
        self._size = min(largest_answer, (bytes_per_second or 0) // 4) if bytes_per_second else largest_answer
        self._level, self._filled_at = float(self._size), clock()
        self._lock = threading.Lock()
        self.taken = 0
        """Bytes read, in all."""

    def wait_seconds(self) -> float:
        """Return the seconds until an answer of useful size may be requested; 0 for now."""
        if self.rate is None:
            return 0.0
        with self._lock:
            self._fill()
            return max(0.0, (self._size / 2 - self._level) / self.rate)

    def most(self) -> int:
        if self.rate is None:
            return self._size
        with self._lock:
            self._fill()
            return max(1, int(self._level))

    def took(self, size: int) -> None:
        with self._lock:
            self.taken += size
            if self.rate is not None:
                self._fill()
                self._level -= size

    def _fill(self) -> None:
        now = self._clock()
        if self.rate is not None:
            self._level = min(self._size, self._level + (now - self._filled_at) * self.rate)
        self._filled_at = now
