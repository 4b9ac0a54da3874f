"""Comparison of an instance's reports with its events in the log, and with its application's outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from millrace.errors import MillraceError
from millrace_audit.answer import iso
from millrace_audit.check.callbacks import ACKNOWLEDGED, FAILED, CallbackOutcomes
from millrace_audit.check.findings import Instance, Summary, Violations, Window
from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.fingerprints import agree
from millrace_audit.reports.messages import FOR_EVER
from millrace_audit.reports.ranges import SequenceRanges, in_words, merged

Break = Callable[[str], None]
RIGHT, WRONG, ABSENT, UNKNOWN = "right", "wrong", "absent", "not comparable"


def compare(instance: Instance, topic: str, violations: Violations) -> Summary:
    """Compare an instance's reports with the log; return its summary, and add the rules that it breaks."""
    add = partial(violations.add, instance.number)
    windows = dict(sorted(instance.windows.items()))
    missing = {start: w.acknowledged - w.log.present for start, w in windows.items()}
    unreported = {start: w.log.present - w.acknowledged - w.failed for start, w in windows.items()}
    _check_end(instance, topic, add)
    moved = _union(missing.values()) & _union(unreported.values())
    if moved:
        add(
            f"sequences reported in another window than that of their headers: {in_words(moved)}. Report each"
            " in the window of its header's time, which is time - time mod 600000"
        )
    if lost := _union(missing.values()) - moved:
        add(
            f"sequences reported as acknowledged, but not in the log: {in_words(lost)}. Report an event as"
            " acknowledged only when the broker has acknowledged it with acks=all"
        )
    if silent := _union(unreported.values()) - moved:
        add(f"sequences in the log, but in no report: {in_words(silent)}. Report every event once")
    repeated, holes = _check_numbers(instance, windows.values(), add)
    states = [_fingerprint_state(start, window, add) for start, window in windows.items()]
    server, service = instance.names or ("", "")
    return Summary(
        instance=instance.number,
        server=server,
        service=service,
        cluster=instance.cluster,
        hello=topic in instance.topics,
        reports=instance.reports,
        missing_reports=instance.missing_reports,
        closed_through=iso(instance.closed_through),
        windows=len(windows),
        acknowledged=len(instance.acknowledged),
        failed=len(instance.failed),
        in_log=sum(window.log.total for window in windows.values()),
        aborted=sum(window.aborted for window in windows.values()),
        missing=sum(map(len, missing.values())),
        unreported=sum(map(len, unreported.values())),
        duplicates=repeated,
        holes=len(holes),
        fingerprints=", ".join(s for s in (WRONG, UNKNOWN, ABSENT, RIGHT) if s in states),
    )


def _union(sets: Iterable[SequenceRanges]) -> SequenceRanges:
    return merged(chain.from_iterable(sets))


def _check_end(instance: Instance, topic: str, add: Break) -> None:
    if instance.topics and topic not in instance.topics:
        add(
            "its events have no hello of this topic: write an AuditHello before the first event of each topic"
        )
    elif not instance.topics:
        add(
            "its events have no hello: before the first event write an AuditHello with this instance to"
            " `audit`, and wait until it is acknowledged"
        )
    if instance.closed_through != FOR_EVER:
        add(
            "it has no last report: at the end write a report with closedThrough 2^63 - 1; only a killed or"
            " running instance has none"
        )


def _check_numbers(instance: Instance, windows: Iterable[Window], add: Break) -> tuple[int, SequenceRanges]:
    """Check that each number is used once, from 0 on; return the number of repeats, and the holes."""
    tally = SequenceTally()
    for window in windows:
        for first, last in window.log.ranges():
            tally.add(first, last)
    if tally.repeated:
        add(
            f"sequences in the log more than once: {in_words(tally.repeated)}. Give each event its own"
            " number, and produce with acks=all and enable.idempotence=true, also when you retry"
        )
    used = tally.present | instance.acknowledged | instance.failed
    holes = SequenceRanges([(0, used.last)]) - used if used and used.last >= 0 else SequenceRanges()
    if holes:
        add(
            f"sequences neither in the log nor in a report: {in_words(holes)}. Number the events of a topic"
            " from 0 without a gap, and give the next event the number of an event that was not handed over"
        )
    return tally.total - len(tally.present), holes


def _fingerprint_state(start: int, window: Window, add: Break) -> str:
    if not window.is_fingerprinted or not (window.acknowledged or window.failed or window.fingerprint):
        return ABSENT
    if window.acknowledged - window.log.present:
        return UNKNOWN
    pairs = [(window.content, window.fingerprint, "fingerprint")]
    has_all_failed = not window.failed - window.log.present
    if has_all_failed:
        pairs.append((window.failed_content, window.failed_fingerprint, "failedFingerprint"))
    wrong = [name for content, reported, name in pairs if not agree(content, reported)]
    for name in wrong:
        add(
            f"{name} of window {iso(start)} is not the sum over the messages in the log: add the XXH64 of"
            " each whole value, with the sequence in its record header as the seed, modulo 2^64, or write"
            " fingerprinted false and 0"
        )
    if wrong:
        return WRONG
    return RIGHT if window.acknowledged or has_all_failed else UNKNOWN


def compare_callbacks(
    outcomes: CallbackOutcomes, instances: Sequence[Instance], violations: Violations
) -> None:
    """Compare the reports with the outcomes that the application received.

    Raise MillraceError if an outcome could belong to several instances, or belongs to none.
    """
    numbers, given = {instance.number for instance in instances}, outcomes.sequences
    if None in given and len(numbers | given.keys() - {None}) > 1:
        raise MillraceError(
            "an outcome names no instance, and the topic has several: write their numbers into the file, or"
            " use a new topic"
        )
    if unknown := given.keys() - numbers - {None}:
        raise MillraceError(
            f"the outcomes name instance {min(map(str, unknown))}, which is not in the topic: correct it"
        )
    for instance in instances if given else ():
        by_outcome = given[None if None in given else instance.number]
        for outcome, reported in ((ACKNOWLEDGED, instance.acknowledged), (FAILED, instance.failed)):
            add = partial(violations.add, instance.number)
            if wrong := reported - by_outcome[outcome]:
                add(f"reported as {outcome}, but without this outcome in the file: {in_words(wrong)}")
            if left := by_outcome[outcome] - reported:
                add(f"sequences {outcome} in the file, but not reported so: {in_words(left)}")
    if outcomes.has_hashes:
        _compare_hashes(outcomes, instances, violations)


def _compare_hashes(
    outcomes: CallbackOutcomes, instances: Sequence[Instance], violations: Violations
) -> None:
    add = partial(violations.add, None)
    wrong = -sum(count for count in outcomes.balance.values() if count < 0)
    left = sum(count for count in outcomes.balance.values() if count > 0)
    failed = sum(len(instance.failed) for instance in instances)
    if wrong:
        add(f"events reported as acknowledged, but without this outcome in the file: {wrong:,}")
    if left:
        add(f"events acknowledged in the file, but not in the log or not reported so: {left:,}")
    if failed != outcomes.failed_hashes:
        add(f"events failed in the file: {outcomes.failed_hashes:,}, but reported as failed: {failed:,}")
