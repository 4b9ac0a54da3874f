"""The auditor's reading thread: applies the audit topics of the aggregate cluster to the database.

Every message is applied in the same transaction as the position behind it, so a kill at any moment loses and
repeats nothing. Reads `audit` (one partition for each origin partition, as the mirror makes them) and
`audit-offline`. Passes over what is no audit record.
"""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition
from millrace.client.transactions import batches_from
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError
from millrace.records import iter_records
from millrace.wire.fetch import error_name
from millrace_audit.auditor import answers, ledger
from millrace_audit.auditor.answers import AuditRules
from millrace_audit.auditor.store import AuditPosition, AuditStore
from millrace_audit.reports.messages import AUDIT_TOPIC, AuditCodec, AuditRecord, now_ms
from millrace_registry.client import SchemaRegistryClient

log = logging.getLogger("millrace.audit.auditor")

FETCH_BYTES = 8 << 20
_PAUSE_S = 0.2
_CHECK_S = 3.0
_RETRY_S = 1.0
_FETCH_WAIT_MS = 100


class Auditor:
    """Applies the audit topics until it is told to stop."""

    def __init__(self, store: AuditStore, rules: AuditRules, bootstrap: str, registry_url: str) -> None:
        self._store = store
        self._rules = rules
        self._client = ClusterClient(bootstrap, client_id="millrace-auditor")
        self._registry = SchemaRegistryClient(registry_url)
        self._codec = AuditCodec(self._registry)
        self.trouble: str | None = "the audit topics are not read to their end yet"
        """Why the database is behind what was said; None while it is not."""

    def check(self) -> None:
        """MillraceError in one line when no broker answers soon."""
        with ClusterClient(self._client.bootstrap, timeout_s=_CHECK_S) as client:
            client.topics()

    def run(self, stop: threading.Event) -> None:
        """Apply what comes until `stop` is set; what goes wrong is logged and tried again."""
        while not stop.is_set():
            try:
                news = self.apply_all()
                self.trouble = None
                stop.wait(0 if news else _PAUSE_S)
            except (MillraceError, SQLAlchemyError) as error:
                self.trouble = " ".join(str(error).split())
                log.warning("%s; trying again", self.trouble)
                stop.wait(_RETRY_S)
        self._client.close()
        self._registry.close()

    def apply_all(self) -> bool:
        """Apply everything up to the high watermarks, then settle what is final; True if there was news."""
        news = False
        topics = self._client.topics()
        for name in (AUDIT_TOPIC, OFFLINE_AUDIT_TOPIC):
            if name in topics:
                news |= self._apply_topic(name, topics[name].topic_id.hex)
        # Only now: half-read topics could look final although the other half says otherwise.
        if news:
            with self._store.writing() as session:
                answers.settle(session, self._rules)
        return news

    def _apply_topic(self, topic: str, topic_id: str) -> bool:
        positions = self._positions(topic, topic_id)
        ends = self._client.list_offsets(topic, LATEST)
        for partition, at in positions.items():
            if at > ends.get(partition, at):
                raise MillraceError(
                    f"{topic}-{partition} ends at {ends[partition]}, but was applied up to {at}:"
                    " its log was lost"
                )
        news = False
        while behind := {p: at for p, at in positions.items() if at < ends.get(p, 0)}:
            fetched = self._client.fetch(topic, behind, max_bytes=FETCH_BYTES, max_wait_ms=_FETCH_WAIT_MS)
            for partition, part in fetched.items():
                records, end = self._decode(f"{topic}-{partition}", behind[partition], part)
                self._apply(topic_id, partition, records, end)
                positions[partition] = end
                news |= bool(records)
            if all(positions[p] == at for p, at in behind.items()):
                break
        return news

    def _positions(self, topic: str, topic_id: str) -> dict[int, int]:
        """Partition -> next offset to apply: where the database stands, or earliest."""
        positions = self._client.list_offsets(topic, EARLIEST)
        with self._store.writing() as session:
            for partition, earliest in positions.items():
                row = session.get(AuditPosition, (topic_id, partition))
                if row is None:
                    row = AuditPosition(topic_id=topic_id, partition=partition, next_offset=0)
                    session.add(row)
                if row.next_offset < earliest:
                    expired = (topic, partition, row.next_offset, earliest)
                    log.error("%s-%d: offsets %d to %d expired before they were applied", *expired)
                    ledger.unheard(session, topic_id, partition, row.next_offset, earliest)
                    row.next_offset = earliest
                positions[partition] = row.next_offset
        return positions

    def _decode(self, where: str, offset: int, part: FetchedPartition) -> tuple[list[AuditRecord], int]:
        """The records from `offset` on, and the offset behind them."""
        if part.error:
            raise MillraceError(f"{where} cannot be read at {offset}: {error_name(part.error)}")
        records: list[AuditRecord] = []
        end = offset
        for header, batch, readable in batches_from(part, offset):
            for message in iter_records(header, batch) if readable else ():
                if message.offset < offset:
                    continue
                if (record := self._codec.decode(message.value)) is not None:
                    records.append(record)
                else:
                    log.warning("%s: offset %d holds no audit record", where, message.offset)
            end = header.next_offset
        return records, end

    def _apply(self, topic_id: str, partition: int, records: list[AuditRecord], end: int) -> None:
        with self._store.writing() as session:
            for record in records:
                ledger.apply(session, record)
            ledger.heard_again(session, topic_id, partition, records)
            session.get_one(AuditPosition, (topic_id, partition)).next_offset = end


def accept(store: AuditStore, instance: int, reason: str) -> None:
    """Note that an operator goes on without the word of an instance."""
    with store.reading() as session:
        ledger.check_known(session, instance)  # here, because it may read every count
    with store.writing() as session:
        ledger.accept(session, instance, reason, now_ms())
