"""An agent's reporter publishes every hello and outcome once, in reports that the auditor accepts."""

from __future__ import annotations

from pathlib import Path

from millrace_agent.reporter import Reporter
from millrace_agent.spool import Event, Spool, SpooledInstance
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, AuditCodec, Hello, Report
from millrace_audit.reports.outcome import RANGES_PER_REPORT, Outcome
from millrace_audit.reports.ranges import SequenceRanges
from tests.unit.audit.test_messages import Ids

WINDOW = 1_431_856_800_000
MOST = 2 * RANGES_PER_REPORT


def outcome() -> Outcome:
    """More ranges than two reports hold, some of them failed."""
    acknowledged = SequenceRanges((10 * n, 10 * n) for n in range(MOST))
    failed = SequenceRanges((10 * n + 5, 10 * n + 5) for n in range(9))
    return Outcome(acknowledged, failed, 71, 72)


def test_a_window_of_more_ranges_than_a_report_takes_is_told_in_several_and_closed_by_the_last(
    tmp_path: Path,
) -> None:
    codec, said, spool = AuditCodec(Ids()), list[bytes](), Spool(tmp_path / "spool", 1 << 30)
    one = SpooledInstance(1, "dc1", "web", "shop")
    spool.announce(one, "t")
    spool.settle(one, "t", {}, {("t", WINDOW): outcome(), ("t", WINDOW + WINDOW_MS): Outcome(fingerprint=3)})
    reporter = Reporter(one, spool, codec.encode, said.append)
    reporter.report(FOR_EVER)
    assert spool.left_instances()[0].unreported == {} == one.unreported
    spool.close()
    reports = [record for record in map(codec.decode, said) if isinstance(record, Report)]
    told = [each for report in reports for each in report.windows if each.window == WINDOW]
    assert [sum(w.acknowledged.range_count + w.failed.range_count for w in r.windows) for r in reports] == [
        RANGES_PER_REPORT,
        RANGES_PER_REPORT,
        9,
    ]
    assert [report.closed_through for report in reports] == [WINDOW, WINDOW, FOR_EVER]
    whole = outcome()
    assert SequenceRanges(pair for each in told for pair in each.acknowledged) == whole.acknowledged
    assert SequenceRanges(pair for each in told for pair in each.failed) == whole.failed
    assert sum(each.fingerprint for each in told) == 71
    assert sum(each.failed_fingerprint for each in told) == 72


def test_an_agent_whose_events_wait_reports_once_after_its_hello_and_is_not_taken_for_idle(
    tmp_path: Path,
) -> None:
    codec, said, spool = AuditCodec(Ids()), list[bytes](), Spool(tmp_path / "spool", 1 << 30)
    spool.take([Event.of_value("t", WINDOW, None, b"waits")]).result()
    one = SpooledInstance(1, "dc1", "web", "shop")
    reporter = Reporter(one, spool, codec.encode, said.append)
    reporter.report(spool.open_from)
    assert said == [], "nothing is reported before the hello"
    reporter.announce("t", spool.open_from)
    for _ in range(3):
        reporter.report(spool.open_from)
    spool.close()
    hello, report = map(codec.decode, said)
    assert isinstance(hello, Hello)
    assert isinstance(report, Report)
    assert (report.number, report.windows, report.closed_through) == (0, [], WINDOW)
