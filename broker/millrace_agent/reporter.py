"""Publishing the hellos and reports of one producer instance on `audit`. Each is in the spool first.

The next process ends a killed instance from the spool. It publishes the last report again, byte for byte, and
the hellos after it with the same seal; this changes nothing if they are in the topic already. Then it
publishes one more report: no event will follow. For one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace_agent.spool import Spool, SpooledInstance
from millrace_audit.reports.messages import FOR_EVER, NOTHING, AuditRecord, Hello, Report, now_ms
from millrace_audit.reports.outcome import closable, portion, reported
from millrace_audit.reports.seals import new_key, seal_of


class Reporter:
    """Publishes an instance's hellos and reports.

    `publish` returns once a message is acknowledged, or raises MillraceError.
    """

    def __init__(
        self,
        spooled: SpooledInstance,
        spool: Spool,
        encode: Callable[[AuditRecord], bytes],
        publish: Callable[[bytes], None],
    ) -> None:
        self.spooled = spooled
        self._spool, self._encode, self._publish = spool, encode, publish
        self._unsent: list[bytes | str] = []  # reports, and topics to announce
        self._closed_through = NOTHING
        if spooled.report is not None:
            self._unsent.append(spooled.report)
        # Hellos before an earlier report were acknowledged before that report was written.
        self._unsent += [topic for topic, number in spooled.hellos.items() if number == spooled.number]

    @property
    def closed_through(self) -> int:
        """The last promised time: no event before it will follow."""
        return self._closed_through

    def announce(self, topic: str, closed_through: int) -> None:
        """Announce a topic, unless it is announced; on return the hello is acknowledged."""
        if topic not in self.spooled.hellos:
            self.send()
            if not self.spooled.hellos:
                self._closed_through = closed_through
            self._spool.announce(self.spooled, topic)
            self._unsent.append(topic)
        self.send()

    def report(self, closed_through: int) -> None:
        """Report new outcomes and the closed time. Do nothing when both are reported already.

        The first report follows the hello even without outcomes: the auditor does not wait long for an
        instance that only said hello.
        """
        self.send()
        one = self.spooled
        while one.hellos and (not one.number or one.unreported or closed_through != self._closed_through):
            self._write_report(closed_through)
            self.send()

    def end(self) -> None:
        """Publish the last report, and take the instance out of the spool."""
        self.send()
        while self.spooled.hellos and not self.spooled.ended:
            self._write_report(FOR_EVER)
            self.send()
        self._spool.end(self.spooled)

    def send(self) -> None:
        """Publish the hellos and reports in the spool that are not acknowledged."""
        while self._unsent:
            word = self._unsent[0]
            self._publish(self._hello(word) if isinstance(word, str) else word)
            del self._unsent[0]

    def _hello(self, topic: str) -> bytes:
        hello = Hello(
            time=now_ms(),
            topic=topic,
            closed_through=self._closed_through,
            seal=seal_of(self.spooled.key),
            **self._names,
        )
        return self._encode(hello)

    def _write_report(self, closed_through: int) -> None:
        reported_now, left = portion(self.spooled.unreported)
        closed_through = closable(closed_through, left)
        next_key = new_key()
        report = Report(
            time=now_ms(),
            number=self.spooled.number,
            key=self.spooled.key,
            seal=seal_of(next_key),
            closed_through=closed_through,
            windows=reported(reported_now),
            **self._names,
        )
        message = self._encode(report)
        is_last = closed_through == FOR_EVER
        rest = {key: left[key] for key in reported_now if key in left}
        self._spool.report(self.spooled, message, list(reported_now), next_key, rest=rest, ended=is_last)
        self._closed_through = closed_through
        self._unsent.append(message)

    @property
    def _names(self) -> dict[str, Any]:
        one = self.spooled
        return {
            "cluster": one.cluster,
            "server": one.server,
            "service": one.service,
            "instance": one.instance,
        }
