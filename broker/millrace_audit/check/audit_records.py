"""Hellos and reports, held against the rules of docs/audit-protocol.md.

A record that breaks a rule is used nevertheless, so that one mistake is named once; the auditor would reject
it. A record counts for its instance whatever its topic is, because numbers and seals do.
"""

from __future__ import annotations

import hashlib

from millrace_audit.check.findings import Instance, Instances, Violations
from millrace_audit.check.log import Stored
from millrace_audit.reports.counts import WINDOW_MS, is_of_this_world, window_start
from millrace_audit.reports.event import MAX_NAME_BYTES
from millrace_audit.reports.fingerprints import added
from millrace_audit.reports.messages import (
    AUDIT_TOPIC,
    FOR_EVER,
    MOST_OPEN_WINDOWS,
    MOST_WINDOWS,
    AuditCodec,
    Hello,
    NoAuditRecord,
    Report,
    ReportedWindow,
)
from millrace_audit.reports.outcome import RANGES_PER_REPORT, still_open
from millrace_audit.reports.ranges import in_words
from millrace_audit.reports.seals import seal_of


class AuditRecords:
    """All hellos and reports in the topic `audit`, and what they state about one topic of events."""

    def __init__(self, topic: str, codec: AuditCodec, violations: Violations) -> None:
        self._topic, self._codec, self._violations = topic, codec, violations
        self.instances = Instances()
        self.unreadable = Violations()
        """Records that are neither hellos nor reports, from the topic's first hello on: older records are of
        earlier versions of the producer."""
        self._has_hello = False

    def take(self, stored: Stored) -> None:
        """Apply the next record of the topic `audit`."""
        place = f"{AUDIT_TOPIC}-{stored.partition} offset {stored.record.offset}"
        try:
            record = self._codec.read(stored.record.value)
        except NoAuditRecord as error:
            self.unreadable.add(None, f"no hello or report can be read: {error}", place)
            return
        if not isinstance(record, Hello | Report):
            self.unreadable.add(None, "the record is no hello or report: producers write only these", place)
            return
        if not stored.is_committed:
            rule = "the record belongs to an aborted transaction: write hellos and reports outside of it"
            self.unreadable.add(None, rule, place)
            return
        if stored.partition != 0:
            topics = {record.topic} if isinstance(record, Hello) else {news.topic for news in record.windows}
            if self._topic in topics:
                rule = "the hello or report is not in partition 0: write all of them there"
                self._violations.add(None, rule, place)
            return
        instance = self.instances[record.instance]
        self._check_head(instance, record, place)
        if isinstance(record, Hello):
            self._hello(instance, record, place)
        else:
            value = stored.record.value or b""
            self._report(instance, record, hashlib.sha256(value).digest(), f"{place}, report {record.number}")

    def _break(self, instance: Instance, place: str, rule: str) -> None:
        self._violations.add(instance.number, rule, place)

    def _check_head(self, instance: Instance, record: Hello | Report, place: str) -> None:
        names = record.server, record.service
        if instance.names is not None and names != instance.names:
            self._break(instance, place, "server or service differs from the first hello: keep both names")
        if max(len(name.encode()) for name in names) > MAX_NAME_BYTES:
            self._break(instance, place, f"a name has more than {MAX_NAME_BYTES} bytes of UTF-8: shorten it")
        if record.cluster and instance.cluster not in ("", record.cluster):
            self._break(instance, place, "the cluster differs from an earlier record: leave it empty")
        instance.cluster = instance.cluster or record.cluster
        if record.instance < 0:
            self._break(instance, place, "the instance is negative: draw 63 random bits")
        if not is_of_this_world(window_start(record.time)):
            self._break(
                instance, place, f"time {record.time} is before 2000 or after 9999: write ms since 1970"
            )
        if instance.closed_through == FOR_EVER:
            rule = "it follows the last report (closedThrough 2^63 - 1): start a new instance"
            self._break(instance, place, rule)

    def _hello(self, instance: Instance, hello: Hello, place: str) -> None:
        if hello.topic == self._topic and not self._has_hello:
            self._has_hello = True
            self.unreadable = Violations()
        if instance.names is None:
            instance.names = hello.server, hello.service
            instance.closed_through = hello.closed_through
        if instance.seal and instance.seal != hello.seal:
            rule = (
                "the hello's seal is not the seal of the last hello or report: a further hello repeats the"
                " SHA-256 of the key of the next report, and waits until all reports are acknowledged"
            )
            self._break(instance, place, rule)
        instance.seal = hello.seal
        instance.topics.setdefault(hello.topic, hello)

    def _report(self, instance: Instance, report: Report, digest: bytes, place: str) -> None:
        if not instance.topics:
            self._break(
                instance, place, "no hello of the instance comes before the report: write an AuditHello first"
            )
        if report.number < instance.next_report:
            if (report.number, digest) != (instance.next_report - 1, instance.last_report):
                rule = "the report's number was used before: count from 0, and repeat a report byte for byte"
                self._break(instance, place, rule)
            return
        if report.number > instance.next_report:
            instance.missing_reports += report.number - instance.next_report
            rule = f"report {instance.next_report} is missing: write report n + 1 when n is acknowledged"
            self._break(instance, place, rule)
        elif instance.seal and seal_of(report.key) != instance.seal:
            rule = (
                "the SHA-256 of the report's key is not the seal of the hello or report before: the seal"
                " belongs to the key of the next report that is written"
            )
            self._break(instance, place, rule)
        self._check_windows(instance, report, place)
        for news in report.windows:
            if news.topic == self._topic:
                self._take_window(instance, report, news, place)
        instance.reports += 1
        instance.next_report, instance.seal = report.number + 1, report.seal
        instance.last_report, instance.closed_through = digest, report.closed_through

    def _check_windows(self, instance: Instance, report: Report, place: str) -> None:
        if len(report.windows) > MOST_WINDOWS:
            self._break(instance, place, f"the report has more than {MOST_WINDOWS:,} windows: split it")
        if sum(w.acknowledged.range_count + w.failed.range_count for w in report.windows) > RANGES_PER_REPORT:
            self._break(instance, place, f"the report has more than {RANGES_PER_REPORT:,} ranges: split it")
        windows = instance.open_windows | {(news.topic, news.window) for news in report.windows}
        instance.open_windows = still_open(windows, report.closed_through)
        if len(instance.open_windows) > MOST_OPEN_WINDOWS:
            rule = f"more than {MOST_OPEN_WINDOWS:,} windows are open: close the time that is over"
            self._break(instance, place, rule)

    def _take_window(self, instance: Instance, report: Report, news: ReportedWindow, place: str) -> None:
        if instance.topics and self._topic not in instance.topics:
            rule = "no hello of the topic comes before a report with its events: write an AuditHello first"
            self._break(instance, place, rule)
        if not is_of_this_world(news.window):
            rule = (
                f"{news.window} is no window: write time - time mod {WINDOW_MS}, of times in ms from 2000 on"
            )
            self._break(instance, place, rule)
        if min(report.closed_through, instance.closed_through) >= news.window + WINDOW_MS:
            rule = (
                "the report has a window that an earlier closedThrough has closed: close a window when all"
                " its events are reported"
            )
            self._break(instance, place, rule)
        if not report.fingerprinted and (news.fingerprint or news.failed_fingerprint):
            rule = "fingerprinted is false, and a fingerprint is not 0: write 0, or fingerprinted true"
            self._break(instance, place, rule)
        self._take_sequences(instance, news, place)
        window = instance.windows[news.window]
        window.fingerprint = added(window.fingerprint, news.fingerprint)
        window.failed_fingerprint = added(window.failed_fingerprint, news.failed_fingerprint)
        window.is_fingerprinted &= report.fingerprinted

    def _take_sequences(self, instance: Instance, news: ReportedWindow, place: str) -> None:
        """Add the reported sequences; only an acknowledged one may be reported once more, as failed."""
        again = (news.acknowledged & instance.acknowledged) | (news.acknowledged & instance.failed)
        again |= (news.failed & instance.failed) | (news.failed & news.acknowledged)
        if again:
            rule = (
                "a sequence is reported twice: report each once, as acknowledged or as failed, and only an"
                " acknowledged event that failed later once more"
            )
            self._break(instance, f"{place}, sequences {in_words(again)}", rule)
        if any(first < 0 for ranges in (news.acknowledged, news.failed) for first, _ in ranges):
            self._break(instance, place, "a sequence is negative: number the events of a topic from 0")
        window = instance.windows[news.window]
        window.acknowledged = (window.acknowledged | news.acknowledged) - news.failed
        window.failed |= news.failed
        instance.acknowledged = (instance.acknowledged | news.acknowledged) - news.failed
        instance.failed |= news.failed
