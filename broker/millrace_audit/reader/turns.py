"""Which reader's word counts, and what of each partition is covered: rules over one topic, in its order.

A reader that died may have left requests behind that arrive after its successor began. So every reader draws
a number, says it in a heartbeat before anything else, and from that heartbeat on, in the order of the topic,
the one before it is no longer listened to. The successor reads the topic up to its own first heartbeat and so
knows exactly what counts: it goes on where that ends. The auditor applies the same rules to the same topic.
"""

# mypy: ignore-errors
from __future__ import annotations

from millrace_audit.reports.messages import AuditRecord, Count, Heartbeat, OffsetRange

PartitionKey = tuple[str, int]
"""Topic id (32 hexadecimal digits) and partition."""


class Turns:
    """The readers of one tier and the partitions they have covered."""

    def __init__(self) -> None:
        self.current: int | None = None
        self._ended: set[int] = set()
        self.covered: dict[PartitionKey, int] = {}
        """Partition -> the next offset that is not counted."""

    def listens_to(self, reader: int) -> bool:
        """True if it is that reader's turn; an unknown one takes over here and now."""
        if reader in self._ended:
            return False
        if self.current is not None and self.current != reader:
            self._ended.add(self.current)
        self.current = reader
        return True

    def takes(self, source: OffsetRange) -> bool:
        """True if the range goes on where its partition is covered; it is covered then."""
        if not self.listens_to(source.reader):
            return False
        key = (source.topic_id, source.partition)
        if self.covered.setdefault(key, source.start) != source.start:
            return False
        self.covered[key] = source.end
        return True

    def apply(self, record: AuditRecord | None, tier: str) -> None:
        """Follow one record of the audit topic; those of other tiers do not matter."""
        if isinstance(record, Heartbeat) and record.tier == tier:
            if self.listens_to(record.reader):
                # Older counts may have expired from the topic; a heartbeat repeats what they came to.
                for position in record.positions:
                    self.covered.setdefault((position.topic_id, position.partition), position.offset)
        elif isinstance(record, Count) and record.tier == tier and isinstance(record.source, OffsetRange):
            self.takes(record.source)
