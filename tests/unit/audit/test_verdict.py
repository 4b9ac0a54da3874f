from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from millrace_audit.answer import Instance, Verdict, Window, iso, overall
from millrace_audit.auditor.verdict import Evidence, TopicView, judge
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally
from millrace_audit.reports.messages import FOR_EVER, NOTHING
from millrace_audit.reports.ranges import SequenceRanges

WINDOW = 1_431_856_800_000
END = WINDOW + WINDOW_MS
GRACE = 60_000
LATER = END + GRACE
SHOP = Instance(instance=11, server="web-1", service="shop", cluster="dc1", closed_through=FOR_EVER)
AROUND = TopicView(
    topic="PageView",
    announced=True,
    instances={},
    origins=("dc1", "dc2"),
    heartbeats={"dc1": LATER, "dc2": LATER, "offline": LATER},
    grace_ms=GRACE,
)
FULL = {"dc1": [(0, 9)], "offline": [(0, 9)], "warehouse": [(0, 9)]}


def evidence(
    tiers: Mapping[str, list[tuple[int, int]]] = FULL,
    *,
    instance: Instance = SHOP,
    acknowledged: tuple[int, int] | None = (0, 9),
    failed: list[tuple[int, int]] | None = None,
    reported_at: int = WINDOW,
) -> Evidence:
    return Evidence(
        instance,
        SequenceRanges([acknowledged] if acknowledged else []),
        SequenceRanges(failed or []),
        reported_at,
        {tier: SequenceTally(ranges) for tier, ranges in tiers.items()},
    )


def of(view: TopicView, *instances: Instance) -> TopicView:
    """The view of a topic that these instances send."""
    return replace(view, instances={instance.instance: instance for instance in instances})


def judged(*entries: Evidence, instances: list[Instance] | None = None, around: TopicView = AROUND) -> Window:
    known = [e.instance for e in entries if e.instance.cluster] if instances is None else instances
    return judge(WINDOW, entries, of(around, *known))


def told(judgement: Window) -> list[tuple[str, str, list[tuple[int, int]]]]:
    return [(f.kind, f.tier, [(first, last) for first, last in f.sequences]) for f in judgement.findings]


def test_a_window_is_complete_when_every_tier_holds_each_acknowledged_sequence_once() -> None:
    judgement = judged(evidence())
    assert judgement.verdict == Verdict.COMPLETE
    assert (judgement.findings, judgement.reasons) == ([], [])
    assert (judgement.acknowledged, judgement.failed) == (10, 0)
    assert judgement.tiers == {"dc1": 10, "offline": 10, "warehouse": 10}


def test_a_final_window_without_events_is_complete() -> None:
    assert judged(instances=[SHOP]).verdict == Verdict.COMPLETE


@pytest.mark.parametrize(
    ("tiers", "finding"),
    [
        ({**FULL, "warehouse": []}, ("missing", "warehouse", [(0, 9)])),
        ({**FULL, "offline": [(0, 3), (6, 9)]}, ("missing", "offline", [(4, 5)])),
        ({**FULL, "dc1": [(1, 9)]}, ("missing", "dc1", [(0, 0)])),
        ({**FULL, "offline": [(0, 9), (7, 8)]}, ("duplicate", "offline", [(7, 8)])),
        ({**FULL, "warehouse": [(0, 9), (2, 2), (2, 2)]}, ("duplicate", "warehouse", [(2, 2)])),
        ({**FULL, "warehouse": [(0, 10)]}, ("unexpected", "warehouse", [(10, 10)])),
        ({**FULL, "dc2": [(3, 4)]}, ("unexpected", "dc2", [(3, 4)])),
    ],
)
def test_what_a_tier_lacks_repeats_or_has_too_much_is_named(
    tiers: dict[str, list[tuple[int, int]]], finding: tuple[str, str, list[tuple[int, int]]]
) -> None:
    judgement = judged(evidence(tiers))
    assert judgement.verdict == Verdict.INCOMPLETE
    assert told(judgement) == [finding]
    (named,) = judgement.findings
    assert (named.server, named.service, named.instance) == ("web-1", "shop", 11)
    assert named.count == sum(last - first + 1 for first, last in finding[2])


def test_a_loss_and_a_duplicate_do_not_cancel() -> None:
    judgement = judged(evidence({**FULL, "offline": [(0, 8), (3, 3)]}))
    assert judgement.tiers["offline"] == judgement.acknowledged == 10
    assert told(judgement) == [("missing", "offline", [(9, 9)]), ("duplicate", "offline", [(3, 3)])]


@pytest.mark.parametrize("closed_through", [NOTHING, WINDOW, END - 1])
def test_an_instance_that_has_not_closed_the_window_keeps_it_unknown(closed_through: int) -> None:
    judgement = judged(evidence(instance=replace(SHOP, closed_through=closed_through)))
    assert judgement.verdict == Verdict.UNKNOWN
    assert "instance 11 (shop on web-1 in dc1) has closed" in judgement.reasons[0]


def test_closing_exactly_the_window_is_enough() -> None:
    assert judged(evidence(instance=replace(SHOP, closed_through=END))).verdict == Verdict.COMPLETE


def test_a_silent_instance_without_any_event_keeps_every_window_unknown() -> None:
    silent = Instance(instance=12, server="web-2", service="shop", cluster="dc2")
    judgement = judged(evidence(), instances=[SHOP, silent])
    assert judgement.verdict == Verdict.UNKNOWN
    assert "instance 12 (shop on web-2 in dc2) has closed nothing" in judgement.reasons[0]


def test_a_missing_report_number_keeps_the_window_unknown_although_it_is_closed() -> None:
    gap = replace(SHOP, missing_reports=SequenceRanges([(3, 4)]))
    judgement = judged(evidence(instance=gap))
    assert judgement.verdict == Verdict.UNKNOWN
    assert judgement.reasons == ["report 3-4 of instance 11 (shop on web-1 in dc1) is missing"]


@pytest.mark.parametrize(
    ("heartbeats", "reason"),
    [
        ({"dc1": LATER, "offline": LATER}, "dc2 has sent no heartbeat"),
        ({"dc1": LATER - 1, "dc2": LATER, "offline": LATER}, "dc1 is counted through"),
    ],
)
def test_every_origins_heartbeat_must_be_past_the_end_plus_grace(
    heartbeats: dict[str, int], reason: str
) -> None:
    judgement = judged(evidence(), around=replace(AROUND, heartbeats=heartbeats))
    assert judgement.verdict == Verdict.UNKNOWN
    assert reason in judgement.reasons[0]


def test_what_an_open_instance_has_not_reported_yet_is_not_unexpected() -> None:
    judgement = judged(evidence(acknowledged=(0, 4), instance=replace(SHOP, closed_through=NOTHING)))
    assert (judgement.verdict, told(judgement)) == (Verdict.UNKNOWN, [])


def test_an_accepted_silent_instance_no_longer_blocks_and_its_reason_stays_visible() -> None:
    accepted = replace(SHOP, closed_through=NOTHING, accepted="host burnt down")
    judgement = judged(evidence(instance=accepted, acknowledged=(0, 4)))
    assert judgement.verdict == Verdict.COMPLETE
    assert judgement.reasons[0].endswith("; accepted: host burnt down")


def test_what_an_accepted_instance_left_unreported_must_still_be_the_same_at_every_tier() -> None:
    accepted = replace(SHOP, closed_through=NOTHING, accepted="host burnt down")
    judgement = judged(evidence({**FULL, "warehouse": [(0, 7)]}, instance=accepted, acknowledged=(0, 4)))
    assert (judgement.verdict, told(judgement)) == (Verdict.INCOMPLETE, [("missing", "warehouse", [(8, 9)])])


def test_what_an_accepted_instance_had_reported_must_be_there() -> None:
    accepted = replace(SHOP, closed_through=NOTHING, accepted="host burnt down")
    judgement = judged(evidence({**FULL, "dc1": [(0, 8)]}, instance=accepted))
    assert told(judgement) == [("missing", "dc1", [(9, 9)])]


def test_an_accepted_instance_that_closed_properly_is_judged_like_any_other() -> None:
    closed = replace(SHOP, accepted="thought to be dead")
    judgement = judged(evidence({**FULL, "dc1": [(0, 12)]}, instance=closed))
    assert (told(judgement), judgement.reasons) == ([("unexpected", "dc1", [(10, 12)])], [])


@pytest.mark.parametrize("there", [[], [(10, 11)]])
def test_failed_sequences_may_be_everywhere_or_nowhere(there: list[tuple[int, int]]) -> None:
    tiers = {tier: [*ranges, *there] for tier, ranges in FULL.items()}
    judgement = judged(evidence(tiers, failed=[(10, 11)]))
    assert (judgement.verdict, judgement.failed) == (Verdict.COMPLETE, 2)


def test_a_failed_sequence_that_is_in_the_origin_must_reach_every_tier() -> None:
    judgement = judged(evidence({**FULL, "dc1": [(0, 10)], "offline": [(0, 10)]}, failed=[(10, 11)]))
    assert (judgement.verdict, told(judgement)) == (
        Verdict.INCOMPLETE,
        [("missing", "warehouse", [(10, 10)])],
    )


def test_a_failed_sequence_that_is_there_twice_is_a_duplicate() -> None:
    tiers = {tier: [*ranges, (10, 10)] for tier, ranges in FULL.items()}
    tiers["offline"].append((10, 10))
    assert told(judged(evidence(tiers, failed=[(10, 11)]))) == [("duplicate", "offline", [(10, 10)])]


def test_a_failure_reported_after_an_acknowledgement_takes_the_acknowledgement_back() -> None:
    tiers = {tier: [(0, 8)] for tier in FULL}
    judgement = judged(evidence(tiers, failed=[(9, 9)]))
    assert (judgement.verdict, judgement.acknowledged, judgement.failed) == (Verdict.COMPLETE, 9, 1)


def test_events_of_an_instance_nobody_announced_are_unexpected_until_it_is_accepted() -> None:
    stranger = Instance(instance=99, server="?", service="?", cluster=None)
    everywhere = {"dc2": [(0, 1)], "offline": [(0, 1)], "warehouse": [(0, 1)]}
    entry = evidence(everywhere, instance=stranger, acknowledged=None)
    judgement = judged(evidence(), entry)
    assert judgement.verdict == Verdict.INCOMPLETE
    assert {(f.kind, f.tier) for f in judgement.findings} == {
        ("unexpected", "dc2"),
        ("unexpected", "offline"),
        ("unexpected", "warehouse"),
    }
    accepted = replace(entry, instance=replace(stranger, accepted="a test client"))
    judgement = judged(evidence(), accepted)
    assert judgement.verdict == Verdict.COMPLETE
    assert judgement.reasons == ["instance 99 (? on ?) was never announced; accepted: a test client"]


def test_what_a_reader_has_not_come_to_yet_is_unknown_and_not_missing() -> None:
    around = replace(AROUND, heartbeats={**AROUND.heartbeats, "offline": LATER - 1})
    entry = evidence({**FULL, "offline": [(0, 3)]}, reported_at=LATER)
    judgement = judged(entry, around=around)
    assert (judgement.verdict, told(judgement)) == (Verdict.UNKNOWN, [])
    assert "tier offline is counted through" in judgement.reasons[0]
    assert judged(entry).verdict == Verdict.INCOMPLETE


def test_a_tier_without_any_reader_is_unknown_and_says_so() -> None:
    around = replace(AROUND, heartbeats={"dc1": LATER, "dc2": LATER})
    judgement = judged(evidence({"dc1": [(0, 9)], "warehouse": [(0, 9)]}), around=around)
    assert judgement.verdict == Verdict.UNKNOWN
    assert judgement.reasons == ["tier offline is not counted: no audit reader has been heard of"]


def test_finality_reaches_as_far_as_the_slowest_heartbeat_and_instance() -> None:
    assert of(AROUND, SHOP).final_through == LATER - GRACE
    assert of(AROUND, SHOP, replace(SHOP, instance=12, closed_through=WINDOW)).final_through == WINDOW
    assert of(AROUND, replace(SHOP, closed_through=WINDOW, accepted="gone")).final_through == END
    assert of(AROUND, replace(SHOP, missing_reports=SequenceRanges([(0, 0)]))).final_through == NOTHING


def test_the_verdict_on_several_windows_is_the_worst_of_them() -> None:
    assert overall([]) == Verdict.COMPLETE
    assert overall([Verdict.COMPLETE, Verdict.UNKNOWN]) == Verdict.UNKNOWN
    assert overall([Verdict.INCOMPLETE, Verdict.UNKNOWN]) == Verdict.INCOMPLETE


def test_times_are_written_as_iso_8601_and_the_ends_of_time_in_words() -> None:
    assert iso(WINDOW) == "2015-05-17T10:00:00Z"
    assert iso(WINDOW + 1) == "2015-05-17T10:00:00.001Z"
    assert (iso(FOR_EVER), iso(NOTHING)) == ("for ever", "nothing")


def test_a_tier_that_was_not_read_since_the_last_report_may_hold_a_duplicate_yet() -> None:
    for tier in ("dc1", "offline"):
        around = replace(AROUND, heartbeats={**AROUND.heartbeats, tier: LATER})
        entry = evidence(reported_at=LATER + 1)
        assert judged(entry, around=around).verdict == Verdict.UNKNOWN
    around = replace(AROUND, heartbeats=dict.fromkeys(AROUND.heartbeats, LATER + 1))
    assert judged(evidence(reported_at=LATER + 1), around=around).verdict == Verdict.COMPLETE


def test_a_name_that_no_cluster_has_is_said_and_hides_neither_what_arrived_nor_what_did_not() -> None:
    stray = replace(SHOP, cluster="dcX")
    judgement = judged(evidence(instance=stray))
    assert (judgement.verdict, told(judgement)) == (Verdict.COMPLETE, [])
    assert judgement.reasons == [
        "instance 11 (shop on web-1 in dcX) names a cluster that is none of dc1, dc2: mend the name it is"
        " given, or the auditor's --origins"
    ]
    assert judgement.tiers == {"dc1": 10, "offline": 10, "warehouse": 10}
    lost = judged(evidence({**FULL, "warehouse": [(0, 8)]}, instance=stray))
    assert (lost.verdict, told(lost)) == (Verdict.INCOMPLETE, [("missing", "warehouse", [(9, 9)])])
    unread = judged(
        evidence(instance=stray, reported_at=LATER + 1),
        around=replace(AROUND, heartbeats={**AROUND.heartbeats, "dc1": LATER + 2, "offline": LATER + 2}),
    )
    assert unread.verdict == Verdict.UNKNOWN, "it may have been any of them"
    nowhere = judged(evidence({}, instance=stray))
    assert told(nowhere) == [("missing", "offline", [(0, 9)]), ("missing", "warehouse", [(0, 9)])]
    open_still = judged(evidence(instance=replace(stray, closed_through=NOTHING), acknowledged=(0, 4)))
    assert (open_still.verdict, told(open_still)) == (Verdict.UNKNOWN, [])
