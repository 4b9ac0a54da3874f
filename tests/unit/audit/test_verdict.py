"""The verdict on one window, from its evidence and its legs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from millrace_audit.answer import Instance, Verdict, Window, iso, overall
from millrace_audit.auditor.judging.judge import window_of
from millrace_audit.auditor.verdict import rules
from millrace_audit.auditor.verdict.evidence import Evidence
from millrace_audit.auditor.verdict.facts import Gap, GapKind, Leg, LegState, VerifyProblem, WindowFacts
from millrace_audit.auditor.verdict.reconcile import sources_of
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally
from millrace_audit.reports.messages import FOR_EVER, NOTHING
from millrace_audit.reports.ranges import Range, SequenceRanges
from tests.unit.audit.story import prints

WINDOW = 1_431_856_800_000
END = WINDOW + WINDOW_MS
SHOP = Instance(instance=11, server="web-1", service="shop", cluster="dc1", closed_through=FOR_EVER)
LOAD = replace(SHOP, cluster="", announced=False)
TIERS = ("dc1", "offline", "warehouse")


def read(origin: str, tier: str) -> Leg:
    return Leg("" if tier == "warehouse" else origin, tier, LegState.READ, is_surplus_final=True)


LEGS = [read("dc1", tier) for tier in TIERS]
READ = WindowFacts(topic="PageView", start=WINDOW, legs=LEGS)
FULL = {"dc1": [(0, 9)], "offline": [(0, 9)], "warehouse": [(0, 9)]}
Ranges = Sequence[Range]


def judged(
    tiers: Mapping[str, Ranges] = FULL,
    *,
    instance: Instance = SHOP,
    acknowledged: Ranges = ((0, 9),),
    failed: Ranges = (),
    facts: WindowFacts = READ,
) -> Window:
    evidence = Evidence()
    if instance.announced:
        said = (
            SequenceRanges(acknowledged),
            prints(11, acknowledged),
            SequenceRanges(failed),
            prints(11, failed),
        )
        evidence.report(1, *said)
    for tier, ranges in tiers.items():
        tally = SequenceTally(ranges, 0 if tier == "warehouse" else prints(11, ranges))
        evidence.count(tier, 2 if tier == "warehouse" else 1, tally)
    evidence = Evidence.unpack(evidence.pack())
    return judge(evidence, {1: instance, 2: LOAD}, facts)


def judge(evidence: Evidence, producers: Mapping[int, Instance], facts: WindowFacts) -> Window:
    sources = sources_of(evidence, producers, with_table=facts.is_table_compared)
    facts = replace(facts, sources=sources)
    return window_of(facts, rules.judge(facts))


def ranges_in(text: str) -> list[Range]:
    return [(int(first), int(last)) for first, _, last in (part.partition("-") for part in text.split())]


def told(judgement: Window) -> list[tuple[str, str, list[tuple[int, int]]]]:
    return [(f.kind, f.tier, [(first, last) for first, last in f.sequences]) for f in judgement.findings]


def test_a_window_is_complete_when_every_tier_holds_each_acknowledged_sequence_once() -> None:
    judgement = judged()
    assert judgement.verdict == Verdict.COMPLETE
    assert (judgement.findings, judgement.reasons) == ([], [])
    assert (judgement.acknowledged, judgement.failed, judgement.carried) == (10, 0, 0)
    assert judgement.tiers == {"dc1": 10, "offline": 10, "warehouse": 10}


@pytest.mark.parametrize(
    ("home", "offline", "warehouse", "findings"),
    [
        ("0-9", "0-9", "", ["missing warehouse 0-9"]),
        ("0-9", "0-3 6-9", "0-3 6-9", ["missing offline 4-5"]),
        ("1-9", "1-9", "1-9", ["missing dc1 0-0"]),
        ("1-9", "1-8", "1-8", ["missing dc1 0-0", "missing offline 9-9"]),
        ("0-9 7-8", "0-9 7-8", "0-9 7-8", ["duplicate dc1 7-8"]),
        ("0-9", "0-9 7-8", "0-9 7-8", ["duplicate offline 7-8"]),
        ("0-9 7-7", "0-9 7-8", "0-9 7-8", ["duplicate dc1 7-7", "duplicate offline 8-8"]),
        ("0-9", "0-9", "0-9 2-2 2-2", ["duplicate warehouse 2-2"]),
        ("0-9", "0-9", "0-10", ["unexpected warehouse 10-10"]),
        ("0-10", "0-10", "0-10", ["unexpected dc1 10-10"]),
        ("0-9", "0-8 3-3", "0-8 3-3", ["missing offline 9-9", "duplicate offline 3-3"]),
    ],
)
def test_what_is_wrong_is_named_at_the_first_tier_where_it_is(
    home: str, offline: str, warehouse: str, findings: list[str]
) -> None:
    there = zip(TIERS, map(ranges_in, (home, offline, warehouse)), strict=True)
    judgement = judged(dict(there))
    assert judgement.verdict == Verdict.INCOMPLETE
    named_here = [f"{kind} {tier} {first}-{last}" for kind, tier, [(first, last)] in told(judgement)]
    assert named_here == findings
    for named in judgement.findings:
        assert (named.server, named.service, named.instance) == ("web-1", "shop", 11)
        assert named.count == sum(last - first + 1 for first, last in named.sequences)


@pytest.mark.parametrize("tier", TIERS)
def test_what_a_tier_has_not_come_to_yet_is_not_missing(tier: str) -> None:
    behind = TIERS[TIERS.index(tier) :]
    facts = replace(READ, legs=[leg for leg in LEGS if leg.tier not in behind])
    assert told(judged({t: [(0, 9)] for t in TIERS if t not in behind}, facts=facts)) == []


def test_what_a_reader_behind_has_not_counted_yet_is_no_surplus_of_the_tier_after_it() -> None:
    tiers = {"dc1": [(0, 9)], "offline": [(0, 12), (3, 3)], "warehouse": [(0, 9)]}
    facts = replace(READ, legs=[read("dc1", "dc1")])
    assert told(judged(tiers, facts=facts, instance=replace(SHOP, closed_through=WINDOW))) == []


def test_a_tier_that_could_not_be_counted_lacks_nothing_and_the_next_is_held_against_the_reports() -> None:
    gap = Gap(kind=GapKind.MESSAGES_NOT_COUNTED, tier="dc1", since=NOTHING, until=FOR_EVER)
    facts = replace(READ, gaps=[gap])
    assert told(judged({**FULL, "dc1": [(0, 3)]}, facts=facts)) == []
    assert told(judged({"dc1": [], "offline": [(0, 7)], "warehouse": [(0, 7)]}, facts=facts)) == [
        ("missing", "offline", [(8, 9)])
    ]


@pytest.mark.parametrize("there", [(), ((10, 11),), ((10, 10),)])
def test_failed_sequences_may_be_everywhere_or_nowhere(there: Ranges) -> None:
    tiers = {tier: [(0, 9), *there] for tier in TIERS}
    judgement = judged(tiers, failed=((10, 11),))
    assert (judgement.verdict, judgement.failed) == (Verdict.COMPLETE, 2)


def test_a_failed_sequence_that_is_at_one_tier_must_be_at_all() -> None:
    tiers = {**FULL, "dc1": [(0, 10)]}
    assert told(judged(tiers, failed=((10, 11),))) == [("missing", "offline", [(10, 10)])]
    tiers = {**FULL, "offline": [(0, 10)], "warehouse": [(0, 10)]}
    assert told(judged(tiers, failed=((10, 11),))) == [("missing", "dc1", [(10, 10)])]


@pytest.mark.parametrize("there", [(0, 7), (0, 9)])
def test_a_failure_reported_after_an_acknowledgement_takes_the_acknowledgement_back(there: Range) -> None:
    evidence = Evidence()
    evidence.report(1, SequenceRanges([(0, 9)]), prints(11, [(0, 9)]), SequenceRanges(), 0)
    evidence.report(
        1, SequenceRanges(), -prints(11, [(8, 9)]), SequenceRanges([(8, 9)]), prints(11, [(8, 9)])
    )
    for tier in TIERS:
        mark = 0 if tier == "warehouse" else prints(11, [there])
        evidence.count(tier, 2 if tier == "warehouse" else 1, SequenceTally([there], mark))
    judgement = judge(evidence, {1: SHOP, 2: LOAD}, READ)
    assert (judgement.verdict, judgement.acknowledged, judgement.failed) == (Verdict.COMPLETE, 8, 2)


def with_aborted(
    tiers: Mapping[str, Ranges], aborted: Ranges, *, instance: Instance = SHOP, failed: Ranges = ()
) -> Window:
    """The verdict on 0-9, of which some were aborted."""
    evidence = Evidence()
    acknowledged = SequenceRanges([(0, 9)])
    evidence.report(1, acknowledged, prints(11, [(0, 9)]), SequenceRanges(failed), prints(11, failed))
    evidence.abort(1, SequenceRanges(aborted))
    for tier, ranges in tiers.items():
        mark = 0 if tier == "warehouse" else prints(11, ranges)
        evidence.count(tier, 2 if tier == "warehouse" else 1, SequenceTally(ranges, mark))
    return judge(Evidence.unpack(evidence.pack(fold=True)), {1: instance, 2: LOAD}, READ)


def everywhere(*ranges: Range) -> dict[str, Ranges]:
    return dict.fromkeys(TIERS, ranges)


def test_acknowledged_events_of_aborted_transactions_are_at_no_tier() -> None:
    judgement = with_aborted(everywhere((0, 5)), [(6, 9)])
    assert (judgement.verdict, told(judgement)) == (Verdict.COMPLETE, [])
    assert judgement.reasons == ["4 events at dc1 lie in aborted transactions, and no tier may hold them"]
    assert with_aborted({}, [(0, 9)]).verdict == Verdict.COMPLETE


@pytest.mark.parametrize(
    ("tiers", "aborted", "finding"),
    [
        (everywhere((0, 5)), [(7, 9)], ("missing", "dc1", [(6, 6)])),
        ({**everywhere((0, 5)), "offline": [(0, 4)], "warehouse": [(0, 4)]}, [(6, 9)],
         ("missing", "offline", [(5, 5)])),
        ({**everywhere((0, 9)), "dc1": [(0, 5)]}, [(6, 9)], ("unexpected", "offline", [(6, 9)])),
        ({**everywhere((0, 5)), "warehouse": [(0, 6)]}, [(6, 9)], ("unexpected", "warehouse", [(6, 6)])),
    ],
)  # fmt: skip
def test_what_is_neither_there_nor_aborted_is_missing_and_what_is_aborted_is_unexpected_behind_the_home(
    tiers: Mapping[str, Ranges], aborted: Ranges, finding: tuple[str, str, list[Range]]
) -> None:
    assert told(with_aborted(tiers, aborted)) == [finding]


@pytest.mark.parametrize("instance", [SHOP, replace(SHOP, closed_through=NOTHING, accepted="burnt down")])
def test_a_failed_or_unreported_event_that_was_aborted_is_unexpected_behind_the_home(
    instance: Instance,
) -> None:
    failed = [(10, 11)] if instance is SHOP else []
    tiers = {**everywhere((0, 9)), "offline": [(0, 11)], "warehouse": [(0, 11)]}
    judgement = with_aborted(tiers, [(10, 11)], instance=instance, failed=failed)
    assert told(judgement) == [("unexpected", "offline", [(10, 11)])]


def test_an_event_that_the_home_holds_beside_an_aborted_one_of_its_number_must_be_everywhere() -> None:
    assert with_aborted(everywhere((0, 9)), [(5, 6)]).verdict == Verdict.COMPLETE
    assert told(with_aborted({**everywhere((0, 9)), "warehouse": [(0, 8)]}, [(9, 9)])) == [
        ("missing", "warehouse", [(9, 9)])
    ]


def test_what_a_producer_without_a_hello_aborted_is_not_called_complete() -> None:
    evidence = Evidence()
    evidence.abort(1, SequenceRanges([(0, 9)]))
    facts = replace(READ, is_announced=False)
    assert judge(evidence, {1: replace(SHOP, announced=False)}, facts).verdict == Verdict.CARRIED


@pytest.mark.parametrize("is_home_blind", [False, True])
def test_content_without_a_fingerprint_is_compared_with_the_tier_before_if_that_is_known(
    is_home_blind: bool,
) -> None:
    evidence = Evidence()
    evidence.report(1, SequenceRanges([(0, 9)]), 0, SequenceRanges(), 0, fingerprinted=False)
    evidence.count("dc1", 1, SequenceTally([(0, 9)], 5))
    evidence.count("offline", 1, SequenceTally([(0, 9)], 6))
    evidence.count("warehouse", 2, SequenceTally([(0, 9)]))
    blind = Gap(kind=GapKind.MESSAGES_NOT_COUNTED, tier="dc1", since=NOTHING, until=FOR_EVER)
    facts = replace(READ, gaps=[blind] if is_home_blind else [])
    judgement = judge(Evidence.unpack(evidence.pack()), {1: SHOP, 2: LOAD}, facts)
    assert told(judgement) == ([] if is_home_blind else [("altered", "offline", [(0, 9)])])


@pytest.mark.parametrize("fingerprinted", [False, True])
def test_a_folded_window_takes_further_reports_with_and_without_fingerprints(fingerprinted: bool) -> None:
    evidence = Evidence()
    for ranges, has_sum in (([(0, 4)], not fingerprinted), ([(5, 9)], fingerprinted)):
        evidence = Evidence.unpack(evidence.pack(fold=True))
        mark = prints(11, ranges)
        evidence.report(
            1, SequenceRanges(ranges), mark if has_sum else 0, SequenceRanges(), 0, fingerprinted=has_sum
        )
        for tier in ("dc1", "offline"):
            evidence.count(tier, 1, SequenceTally(ranges, mark))
        evidence.count("warehouse", 2, SequenceTally(ranges))
    assert judge(evidence, {1: SHOP, 2: LOAD}, READ).verdict == Verdict.COMPLETE


def test_without_fingerprints_nothing_shows_that_two_producers_share_a_number() -> None:
    evidence = Evidence()
    evidence.report(1, SequenceRanges([(0, 9)]), 0, SequenceRanges(), 0, fingerprinted=False)
    for _ in range(2):
        evidence.count("dc1", 1, SequenceTally([(0, 9)], prints(11, [(0, 9)])))
    judgement = judge(evidence, {1: SHOP}, replace(READ, legs=[read("dc1", "dc1")]))
    assert told(judgement) == [("duplicate", "dc1", [(0, 9)])]
    assert judgement.reasons == []


def test_what_an_open_instance_has_not_reported_yet_is_not_unexpected() -> None:
    tiers = {tier: [(0, 12)] for tier in TIERS}
    judgement = judged(tiers, instance=replace(SHOP, closed_through=WINDOW))
    assert told(judgement) == []
    assert (
        "reported through sequence 9 here, and 3 events are counted that it never reported"
        in judgement.reasons[0]
    )


def test_a_window_lists_twenty_reasons_and_counts_the_others() -> None:
    problems = [VerifyProblem(f"problem {n}", is_of_topic=True) for n in range(25)]
    reasons = judge(Evidence(), {}, replace(READ, problems=problems)).reasons
    assert (len(reasons), reasons[-1]) == (21, "and 5 more")
    assert reasons[-2] == "`millrace verify` found: problem 19"


def test_what_an_accepted_instance_left_unreported_must_still_be_the_same_at_every_tier() -> None:
    silent = replace(SHOP, closed_through=NOTHING, accepted="burnt down")
    tiers = {tier: [(0, 12)] for tier in TIERS}
    assert judged(tiers, instance=silent).verdict == Verdict.COMPLETE
    assert told(judged({**tiers, "offline": [(0, 11)]}, instance=silent))[0] == (
        "missing",
        "offline",
        [(12, 12)],
    )
    assert told(judged({t: [(0, 8)] for t in TIERS}, instance=silent)) == [("missing", "dc1", [(9, 9)])]


def test_an_unannounced_instance_is_carried_if_it_is_the_same_everywhere() -> None:
    stranger = replace(SHOP, announced=False)
    judgement = judged(instance=stranger)
    assert (judgement.verdict, judgement.acknowledged, judgement.carried) == (Verdict.CARRIED, 0, 10)
    assert told(judged({**FULL, "offline": [(0, 8)], "warehouse": [(0, 8)]}, instance=stranger)) == [
        ("missing", "offline", [(9, 9)])
    ]


def test_what_only_the_warehouse_has_is_unexpected_there() -> None:
    assert told(judged({"warehouse": [(0, 1)]}, acknowledged=())) == [("unexpected", "warehouse", [(0, 1)])]
    evidence = Evidence()
    evidence.count("warehouse", 2, SequenceTally([(0, 1)]))
    assert told(judge(evidence, {2: LOAD}, READ)) == [("unexpected", "warehouse", [(0, 1)])]


def test_two_clusters_events_of_one_name_share_what_is_loaded_of_them() -> None:
    evidence = Evidence()
    other = replace(SHOP, cluster="dc2", announced=False)
    evidence.report(1, SequenceRanges([(0, 9)]), prints(11, [(0, 9)]), SequenceRanges(), 0)
    for tier, producer, ranges in (
        ("dc1", 1, [(0, 9)]),
        ("offline", 1, [(0, 9)]),
        ("dc2", 3, [(10, 11)]),
        ("offline", 3, [(10, 11)]),
    ):
        evidence.count(tier, producer, SequenceTally(ranges, prints(11, ranges)))
    evidence.count("warehouse", 2, SequenceTally([(0, 9), (10, 11)]))
    legs = [*LEGS, read("dc2", "dc2"), read("dc2", "offline")]
    judgement = judge(evidence, {1: SHOP, 2: LOAD, 3: other}, replace(READ, legs=legs))
    assert (judgement.verdict, told(judgement), judgement.carried) == (Verdict.CARRIED, [], 2)


def test_two_producers_with_one_number_are_named_where_their_messages_show_it() -> None:
    evidence = Evidence()
    evidence.report(1, SequenceRanges([(0, 9)]), prints(11, [(0, 9)]), SequenceRanges(), 0)
    evidence.count("dc1", 1, SequenceTally([(0, 9)], prints(11, [(0, 9)])))
    evidence.count("dc1", 1, SequenceTally([(0, 9)], prints(11, [(0, 9)], "another's")))
    judgement = judge(evidence, {1: SHOP}, replace(READ, legs=[read("dc1", "dc1")]))
    assert told(judgement) == [("duplicate", "dc1", [(0, 9)])]
    assert judgement.reasons == ["two producers share instance number 11: their messages differ"]


def test_what_is_awaited_makes_the_verdict_no_better_than_it_says() -> None:
    unannounced = {"is_announced": False, "has_events": False}
    problem = {"problems": [VerifyProblem("a bad manifest", is_of_topic=True)]}
    waiting = {"legs": [*LEGS, Leg("dc2", "dc2", LegState.NOT_COUNTED)]}
    for verdict, fact in (
        (Verdict.CARRIED, unannounced),
        (Verdict.PENDING, unannounced | waiting),
        (Verdict.UNKNOWN, unannounced | waiting | problem),
    ):
        facts = replace(READ, **fact)
        assert judged(facts=facts).verdict == verdict
        assert len(judged(facts=facts).reasons) == len(fact) - ("has_events" in fact)
        assert judged({**FULL, "warehouse": []}, facts=facts).verdict == Verdict.INCOMPLETE


def test_the_verdict_on_several_windows_is_the_worst_of_them() -> None:
    assert overall([]) == overall(["complete"]) == Verdict.COMPLETE
    assert overall(["complete", "carried"]) == Verdict.CARRIED
    assert overall(["pending", "carried"]) == Verdict.PENDING
    assert overall(["unknown", "pending"]) == Verdict.UNKNOWN
    assert overall(["unknown", "incomplete"]) == Verdict.INCOMPLETE


def test_times_are_written_as_iso_8601_and_the_ends_of_time_in_words() -> None:
    assert iso(WINDOW) == "2015-05-17T10:00:00Z"
    assert iso(WINDOW + 5) == "2015-05-17T10:00:00.005Z"
    assert (iso(NOTHING), iso(FOR_EVER)) == ("nothing", "for ever")
