"""Detection of standstills of the broker, after which its knowledge of the topics may be stale.

A broker that was stopped, or whose machine was, wakes up with the requests that came meanwhile and with the
topics it knew before. One of them may have been deleted and recreated: a client that knows the new topic may
have written to it, and its old log is about to go. So after a standstill nothing is acknowledged with
acks=all until the topics were read again. A broker that did not stand still learns of a change at once. It
needs no ZooKeeper to go on: while that is away no topic can be deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from millrace_broker.mailbox import Mailbox, outcome

logger = logging.getLogger("millrace.broker")

STANDSTILL_S = 1.0
"""Longest time between two turns of the loop, unless the broker stands still. No session with ZooKeeper
expires sooner, so a broker that others took for dead always notices. A busy loop's turns take 50 ms."""
TURN_S = STANDSTILL_S / 4
RETRY_S = 1.0


class Standstill:
    """Watches the loop's turns and has the topics read again after a standstill. On the loop only."""

    def __init__(
        self,
        mailbox: Mailbox,
        read_topics: Callable[[], Future[None]],
        confirmed: Callable[[], None],
        unconfirmed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read_topics` begins to read in a thread; one of the two others follows on the loop."""
        self._mailbox, self._read_topics, self._clock = mailbox, read_topics, clock
        self._confirmed, self._unconfirmed = confirmed, unconfirmed
        self._turned = clock()
        self.count = 0
        """Number of standstills noticed."""
        self._doubtful = False

    def watch(self) -> None:
        """Have the loop turn often, from now on."""
        self._turned = self._clock()
        self._mailbox.every(TURN_S, self.doubtful)

    def doubtful(self) -> bool:
        """Return True from a standstill on until the topics were read again; called in every turn."""
        before, self._turned = self._turned, self._clock()
        if self._turned - before > STANDSTILL_S:
            logger.warning("stood still for %.1f s: reading the topics again", self._turned - before)
            self.count += 1
            if not self._doubtful:
                self._doubtful = True
                self._mailbox.begin(self._read_again())
        return self._doubtful

    async def _read_again(self) -> None:
        """Read the topics until that succeeds and the broker has not stood still meanwhile."""
        count = -1
        while count != self.count:
            count = self.count
            try:
                await outcome(self._read_topics())
            except Exception as error:
                logger.warning("acks=all is refused until the topics can be read: %s", error)
                self._unconfirmed()
                await self._mailbox.sleep(RETRY_S)
                count = -1
            self.doubtful()
        self._doubtful = False
        self._confirmed()
