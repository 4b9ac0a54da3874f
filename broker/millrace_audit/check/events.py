"""The topic's messages, held against the rules for audit headers in docs/audit-protocol.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from millrace.records import Record
from millrace_audit.check.callbacks import CallbackOutcomes
from millrace_audit.check.findings import Instance, Instances, Violations, Window
from millrace_audit.check.log import Stored
from millrace_audit.reports.counts import EARLIEST_MS, FIRST_EVENT_MS, MOST_AHEAD_MS, window_start
from millrace_audit.reports.event import PREFIX_BYTES, EventHeader, counted_header
from millrace_audit.reports.fingerprints import added, fingerprint, is_strong, strong_fingerprint
from millrace_audit.reports.messages import now_ms
from millrace_audit.reports.record_header import (
    HEADER_NAME,
    VALUE_BYTES,
    VERSION,
    RecordHeader,
    audit_header,
    topic_tag,
)


class Events:
    """The events of a topic, counted for their instances. All reports must have been read before."""

    def __init__(
        self,
        topic: str,
        topics: Iterable[str],
        instances: Instances,
        is_audited: Callable[[int], bool],
        outcomes: CallbackOutcomes,
        violations: Violations,
    ) -> None:
        """`topics` are all topics of the cluster. `is_audited(schema_id)` is True if messages of that schema
        begin with a header.
        """
        self._topic, self._tag = topic, topic_tag(topic)
        self._names = {topic_tag(name).to_bytes(4, "big"): name for name in topics}
        self._instances, self._is_audited = instances, is_audited
        self._outcomes, self._violations = outcomes, violations
        self._latest = now_ms() + MOST_AHEAD_MS

    def take(self, stored: Stored) -> None:
        """Count the next message of the topic."""
        record, place = stored.record, f"{self._topic}-{stored.partition} offset {stored.record.offset}"
        header = self._header(record, place)
        if header is None:
            return
        instance = self._instances[header.instance]
        self._check(instance, header, stored, place)
        window = instance.windows[window_start(header.time)]
        if header.sequence not in window.log.present:
            self._add_content(window, header, record.value or b"")
        window.log.add(header.sequence, header.sequence)
        window.aborted += not stored.is_committed

    def _header(self, record: Record, place: str) -> RecordHeader | EventHeader | None:
        """Return the header by which readers count the message; report why there is none."""
        values = [value for name, value in record.headers if name == HEADER_NAME]
        if len(values) > 1:
            rule = f"several headers are named {HEADER_NAME}: remove those that the record has already"
            self._violations.add(None, rule, place)
        if values:
            header = audit_header(record.headers, self._tag)
            if header is None:
                rule = (
                    f"its {HEADER_NAME} does not count: {header_problem(values[0], self._tag, self._names)}"
                )
                self._violations.add(None, rule, place)
            return header
        value = record.value or b""
        if len(value) <= PREFIX_BYTES or value[0] or not self._is_audited(int.from_bytes(value[1:5], "big")):
            rule = f"the message has no audit header: add the record header {HEADER_NAME} to every event"
            self._violations.add(None, rule, place)
            return None
        in_value = counted_header(value)
        if in_value is None:
            rule = "the header in its value is cut off, has a negative sequence or a name over 255 bytes"
            self._violations.add(None, rule, place)
        return in_value

    def _check(
        self, instance: Instance, header: RecordHeader | EventHeader, stored: Stored, place: str
    ) -> None:
        rules = []
        if isinstance(header, EventHeader) and instance.names not in (None, (header.server, header.service)):
            rules.append("server or service differs from the first hello: keep both names")
        if not FIRST_EVENT_MS <= header.time <= self._latest:
            rules.append(
                "the event's time is before 2000, or over a day ahead: write milliseconds since 1970,"
                " and refuse other times"
            )
        elif not stored.has_append_time and stored.record.timestamp != header.time:
            rules.append("the record's timestamp is not the header's time: produce with timestamp = time")
        hello = instance.topics.get(self._topic)
        if hello is not None and header.time < hello.closed_through:
            rules.append(
                "the event is older than closedThrough of the hello: write -2^63 there, or the time of the"
                " oldest event"
            )
        for rule in rules:
            self._violations.add(instance.number, rule, place)

    def _add_content(self, window: Window, header: RecordHeader | EventHeader, value: bytes) -> None:
        sequence = header.sequence
        seed = sequence if isinstance(header, RecordHeader) else None
        if sequence in window.acknowledged:
            digest = strong_fingerprint if is_strong(window.fingerprint) else fingerprint
            window.content = added(window.content, digest(value, seed))
            self._outcomes.acknowledge(value)
        elif sequence in window.failed:
            digest = strong_fingerprint if is_strong(window.failed_fingerprint) else fingerprint
            window.failed_content = added(window.failed_content, digest(value, seed))


def header_problem(value: bytes | None, tag: int, names: Mapping[bytes, str]) -> str:
    """Return the reason that a record header's value is no audit header of the topic with this tag.

    `names` are the topics of the cluster by their tags.
    """
    if value is None or len(value) != VALUE_BYTES:
        size = "no value" if value is None else f"{len(value)} bytes"
        return f"it has {size} instead of {VALUE_BYTES} bytes: version, tag, instance, sequence and time"
    if value[0] != VERSION:
        return f"its version is {value[0]} instead of {VERSION}: its first byte is the version"
    its_tag = value[1:5]
    if its_tag == tag.to_bytes(4, "little"):
        return "its tag is little-endian: write all numbers big-endian"
    if its_tag != tag.to_bytes(4, "big"):
        if its_tag in names:
            return (
                f"its tag is that of topic {names[its_tag]}: tag each message for its own topic, and drop"
                " this header of messages that you forward"
            )
        return "its tag is not the CRC-32 (zlib's crc32) of the topic's name in UTF-8: write this CRC"
    if value[5] & 0x80:
        return "its instance is negative: draw 63 random bits"
    if value[13] & 0x80:
        return "its sequence is negative: number the events of a topic from 0"
    return f"its time is before {EARLIEST_MS}: write milliseconds since 1970"
