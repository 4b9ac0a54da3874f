"""Writer of operators' decisions to the audit topic, signed in the auditor's own turn."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.client.cluster_client import ClusterClient
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError
from millrace.zookeeper.session import Session
from millrace_audit.reports.messages import AUDITOR, AuditCodec, Decision
from millrace_audit.reports.mirrors import cluster_name
from millrace_audit.reports.publish import AuditPublisher
from millrace_audit.reports.turn_taker import Holder, TurnTaker
from millrace_audit.reports.turns import Seat, Turn

_PUBLISH_S = 10.0
MAY_COME = "it may still take effect. Decide again only if the topic's history lacks it after a minute"


class Undecided(MillraceError):
    """A decision that was not applied in time; the text says whether it may still take effect."""


class DecisionWriter:
    """Writer of decisions. For one thread.

    The lease of the database admits one writer, so the writer does not hold its seat. Its turn is valid until
    the next turn is taken.
    """

    def __init__(self, client: ClusterClient, session: Session, codec: AuditCodec) -> None:
        self._client, self._session, self._codec = client, session, codec
        self._publisher: AuditPublisher | None = None
        self._turn: Turn | None = None

    def write(self, decisions: Sequence[Decision]) -> None:
        """Write decisions, and return when the brokers have acknowledged them. Raise Undecided otherwise."""
        try:
            if self._publisher is None:
                bootstrap = self._client.bootstrap
                self._publisher = AuditPublisher(bootstrap, OFFLINE_AUDIT_TOPIC, timeout_s=_PUBLISH_S)
            self._publisher.check_topics()
            turn = self._turn = self._turn or self._take_turn()
            messages = [self._codec.encode(decision, timeout_s=_PUBLISH_S) for decision in decisions]
        except MillraceError as error:
            raise Undecided(f"the decision is not written and has no effect: {error}") from error
        try:
            self._publisher.publish(messages, keys=[turn.key(message) for message in messages])
        except MillraceError as error:
            raise Undecided(
                f"the brokers have not acknowledged the decision ({error}): {MAY_COME}"
            ) from error

    def _take_turn(self) -> Turn:
        seat = Seat.of(AUDITOR, cluster_name(self._session, self._client))
        taker = TurnTaker(self._session, seat, self._client.cluster_id)
        turn = taker.take()
        if isinstance(turn, Holder):
            raise MillraceError(
                f"another auditor on {turn.host}, process {turn.pid}, is taking its turn: try again"
            )
        taker.release()
        return turn

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
