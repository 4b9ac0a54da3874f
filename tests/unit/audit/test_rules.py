"""The table of rules, driven with examples and with generated facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import click
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millrace.cli import cli
from millrace_audit.answer import Instance, Verdict, overall
from millrace_audit.auditor.verdict.evidence import Observed, Reported, flatten
from millrace_audit.auditor.verdict.facts import (
    Debt,
    DebtState,
    Gap,
    GapKind,
    Leg,
    LegState,
    LostLoad,
    Reader,
    ReaderState,
    Rejected,
    ReportStream,
    Source,
    Special,
    StreamState,
    TableTrouble,
    UncountedRows,
    VerifyProblem,
    WindowFacts,
)
from millrace_audit.auditor.verdict.rules import REJECTED_RECORDS, RULES, SPECIAL_RULES, judge
from millrace_audit.reports.messages import FOR_EVER, NOTHING, OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.ranges import Range, merged
from tests.support import REPOSITORY
from tests.unit.audit.printed_rules import PAGE, in_page, printed
from tests.unit.audit.story import W, prints

TIERS = ("dc1", OFFLINE, WAREHOUSE, TABLE)
SHOP = Instance(instance=11, server="web-1", service="shop", cluster="dc1", closed_through=FOR_EVER)
SILENT = replace(SHOP, closed_through=NOTHING)
LEGS = [
    Leg("" if tier in (WAREHOUSE, TABLE) else "dc1", tier, LegState.READ, is_surplus_final=True)
    for tier in TIERS
]
LATE = Gap(
    kind=GapKind.MESSAGES_NOT_COUNTED, tier=OFFLINE, since=W, until=FOR_EVER, is_late=True, hides_missing=True
)


def pairs_of(numbers: Iterable[int]) -> list[Range]:
    return [(n, n) for n in sorted(numbers)]


def as_flat(numbers: Iterable[int]) -> list[int]:
    return flatten(merged(pairs_of(numbers)))


def held(tier: str, *numbers: int, content: str = "") -> Observed:
    """Return the observation of a tier that holds each number as often as it is given."""
    mark = 0 if tier in (WAREHOUSE, TABLE) else prints(11, pairs_of(numbers), content)
    repeats = [n for n in {*numbers} for _ in range(numbers.count(n) - 1)]
    return Observed([*as_flat({*numbers}), *flatten(pairs_of(repeats))], mark)


def source(*acknowledged: int, instance: Instance = SHOP, at: Mapping[str, Observed] | None = None) -> Source:
    """A source with the same events at every tier, but for the tiers that are given."""
    numbers = {*acknowledged}
    reported = Reported(as_flat(numbers), prints(11, pairs_of(numbers))) if instance.announced else Reported()
    return Source(instance, reported, {tier: held(tier, *acknowledged) for tier in TIERS} | {**(at or {})})


def facts(**values: Any) -> WindowFacts:
    """Facts of a complete window, with changes."""
    complete: dict[str, Any] = {
        "topic": "T",
        "start": W,
        "sources": [source(*range(5))],
        "legs": LEGS,
        "origins": ["dc1"],
    }
    return WindowFacts(**{**complete, **values})


def lacking(tier: str, *numbers: int, **more: Any) -> WindowFacts:
    """Facts of a window whose events are at each tier before one, and from there on only some of them."""
    behind = {t: held(t, *numbers) for t in TIERS[TIERS.index(tier) :]}
    return facts(sources=[source(*range(5), at=behind)], **more)


def early(kind: GapKind, **values: Any) -> WindowFacts:
    return facts(gaps=[Gap(kind=kind, since=W, until=W + 1, **values)])


def at_leg(state: LegState, origin: str = "dc2", tier: str = "dc2") -> WindowFacts:
    return facts(legs=[*LEGS, Leg(origin, tier, state)])


UNANNOUNCED = source(*range(5), instance=replace(SHOP, announced=False))
COPIED = Source(replace(SHOP, cluster="dc2", announced=False), observed={"dc2": held("dc2", 3, 4)})
TWICE = Observed([0, 4, 0, 4], 7)
BAD_COPY = replace(LATE, kind=GapKind.UNREADABLE, hides_missing=False, cause="a bit is flipped")
EXAMPLES = {
    "topic-unknown": facts(special=Special.UNKNOWN_TOPIC),
    "window-deleted": facts(special=Special.DELETED),
    "being-judged": facts(special=Special.BEING_JUDGED),
    "in-the-future": facts(special=Special.IN_THE_FUTURE),
    "missing-at-home": lacking("dc1", 0, 1, 2, 3),
    "missing-at-offline": lacking(OFFLINE, 0, 1),
    "missing-at-warehouse": lacking(WAREHOUSE),
    "missing-in-table": lacking(TABLE, 0, 4),
    "duplicate-at-home": lacking("dc1", *range(5), 4),
    "duplicate-behind": lacking(WAREHOUSE, *range(5), 4),
    "unexpected": lacking(OFFLINE, *range(6)),
    "altered": facts(sources=[source(*range(5), at={"dc1": held("dc1", *range(5), content="other")})]),
    "two-homes": facts(sources=[source(*range(5)), COPIED], legs=[*LEGS, Leg("dc2", "dc2", LegState.READ)]),
    "rejected-by-load": facts(rejected=[Rejected(3, 7, 0, "not Avro", None)]),
    "load-lost": facts(lost_loads=[LostLoad(3, 40, 2)]),
    "verify-problem": facts(problems=[VerifyProblem("a file is cut", is_of_topic=False)]),
    "reader-never-started": facts(readers=[Reader("dc2", ReaderState.NEVER_SEEN)]),
    "reader-stale": facts(readers=[Reader(OFFLINE, ReaderState.STALE, W)]),
    "reports-stuck": facts(streams=[ReportStream("dc1", StreamState.STUCK, W)]),
    "report-missing": facts(debts=[Debt(replace(SHOP, missing_reports=[(3, 4)]), DebtState.REPORT_MISSING)]),
    "producer-silent": facts(debts=[Debt(SILENT, DebtState.SILENT)]),
    "more-producers-silent": facts(more_debts={DebtState.SILENT: 3, DebtState.REPORT_MISSING: 2}),
    "reports-lost": early(GapKind.REPORTS_LOST, origin="dc1"),
    "reports-lost-late": facts(
        sources=[UNANNOUNCED], gaps=[replace(LATE, kind=GapKind.REPORTS_LOST, tier="", origin="dc1")]
    ),
    "too-many-producers": early(GapKind.TOO_MANY_PRODUCERS, origin="dc1"),
    "not-counted-in-full": early(GapKind.MESSAGES_NOT_COUNTED, tier="dc1", start=5, end=9),
    "counts-lost": early(GapKind.COUNTS_LOST, tier=OFFLINE),
    "partition-unreadable": early(GapKind.UNREADABLE, tier="dc1", start=5, cause="a bit is flipped"),
    "offline-blocked": facts(legs=[*LEGS, Leg("dc2", OFFLINE, LegState.BLOCKED)], gaps=[BAD_COPY]),
    "upstream-blocked": at_leg(LegState.UPSTREAM_BLOCKED, tier=OFFLINE),
    "difference-unproven": lacking(OFFLINE, 0, 1, gaps=[LATE]),
    "rows-not-counted": facts(unkeyed={OFFLINE: {OFFLINE: [4, 7]}}, uncounted=[UncountedRows(3, 4)]),
    "topic-not-counted": facts(is_counted=False),
    "topic-not-counted-here": at_leg(LegState.TOPIC_NOT_COUNTED),
    "origin-not-configured": at_leg(LegState.ORIGIN_NOT_CONFIGURED),
    "load-lost-somewhere": facts(lost_loads=[LostLoad(3, None, 2)]),
    "other-editions": facts(has_other_editions=True),
    "table-not-counted": facts(table_troubles=[TableTrouble(W, "it is not in the catalog")]),
    "warehouse-reports-lost": facts(
        lost_reports=[Gap(kind=GapKind.COUNTS_LOST, tier=WAREHOUSE, since=W, until=W + 1, is_of_all=True)]
    ),
    "verify-problem-of-topic": facts(problems=[VerifyProblem("a manifest was edited", is_of_topic=True)]),
    "too-many-ranges": facts(has_too_many_ranges=True),
    "not-mirrored": at_leg(LegState.NOT_MIRRORED, tier=OFFLINE),
    "in-flight": at_leg(LegState.IN_FLIGHT, tier=OFFLINE),
    "not-loaded": facts(legs=[*LEGS[:2], Leg("", WAREHOUSE, LegState.NOT_LOADED)], read_at={OFFLINE: W}),
    "unreported-yet": facts(sources=[UNANNOUNCED], pending_reports=["dc1"]),
    "newest-not-counted": at_leg(LegState.NOT_COUNTED),
    "producer-open": facts(debts=[Debt(replace(SHOP, closed_through=W), DebtState.OPEN)]),
    "more-producers-open": facts(more_debts={DebtState.OPEN: 1}),
    "reports-applying": facts(streams=[ReportStream("dc1", StreamState.APPLYING)]),
    "window-open": facts(readers=[Reader("dc1", ReaderState.CURRENT)]),
    "not-announced": facts(sources=[], is_announced=False, has_events=False),
    "unreported": facts(sources=[UNANNOUNCED]),
    "rejected-accepted": facts(rejected=[Rejected(3, 7, 0, "not Avro", "probes")]),
    "accepted": facts(accepted=[replace(SILENT, accepted="host burnt down")]),
    "more-accepted": facts(more_accepted=4),
    "unreported-of-silent": facts(
        sources=[source(*range(5), instance=SILENT, at={"dc1": held("dc1", *range(6))})]
    ),
    "aborted": facts(
        sources=[
            replace(source(*range(6), at={tier: held(tier, *range(4)) for tier in TIERS}), aborted=[4, 5])
        ]
    ),
    "disowned": facts(sources=[source(instance=replace(SHOP, announced=False, accepted="not ours"))]),
    "shared-number": facts(sources=[source(*range(5), at={"dc1": TWICE})]),
    "given-up": lacking(WAREHOUSE, 0, 1, rejected=[Rejected(3, 3, 3, "not Avro", "probes")]),
}
"""Rule -> facts in which it has a hit."""


def test_a_window_without_a_hit_is_complete() -> None:
    assert judge(facts()).verdict == Verdict.COMPLETE
    assert judge(facts()).causes == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_rule_finds_its_example(name: str) -> None:
    assert name in [cause.rule for cause in judge(EXAMPLES[name]).causes]


def test_every_rule_has_an_example_and_a_name_of_its_own() -> None:
    names = [rule.name for rule in (*SPECIAL_RULES, *RULES)]
    assert names == [*EXAMPLES], "give each rule an example in EXAMPLES, in the order of the table"


def test_rules_are_ordered_by_their_verdicts_the_worst_first() -> None:
    verdicts = [[*Verdict].index(rule.verdict) for rule in RULES]
    assert verdicts == sorted(verdicts)


def test_a_name_that_a_client_chose_is_one_word_of_the_command() -> None:
    name = "a; rm -rf ~ $(id)"
    commands = [cause.command for cause in judge(replace(EXAMPLES["not-loaded"], topic=name)).causes]
    assert f"millrace load '{name}'" in commands


@pytest.mark.parametrize("command", sorted({rule.command for rule in RULES} - {"", REJECTED_RECORDS}))
def test_every_command_and_its_options_exist(command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "millrace"
    context = click.Context(cli)
    found: click.Command = cli
    while isinstance(found, click.Group):
        step = found.get_command(context, words.pop(0))
        assert step is not None, command
        found = step
    options = {option for each in found.params for option in each.opts}
    assert {word for word in words if word.startswith("--") and "{" not in word} <= options


def test_every_runbook_is_a_heading() -> None:
    headings = re.findall(r"^### (\w+)$", (REPOSITORY / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert {rule.runbook for rule in RULES} <= {"", *headings}


def test_the_page_has_the_table_that_the_rules_print() -> None:
    assert in_page(PAGE.read_text()) == printed(), "run python -m tests.unit.audit.printed_rules"


# Generated facts.

piles = st.lists(st.integers(0, 6), max_size=8)


@given(
    st.sets(st.integers(0, 6)),
    st.fixed_dictionaries(dict.fromkeys(TIERS, piles)),
    st.sampled_from(["", *TIERS[:2]]),
    st.booleans(),
)
@settings(max_examples=200)
def test_complete_means_that_each_acknowledged_sequence_is_once_and_unchanged_at_every_tier(
    acknowledged: set[int], at: dict[str, list[int]], changed: str, fingerprinted: bool
) -> None:
    there = {tier: held(tier, *numbers, content="x" * (tier == changed)) for tier, numbers in at.items()}
    sent = source(*acknowledged, at=there)
    sent.reported.fingerprinted = fingerprinted  # a change between two tiers shows without, too
    judged = judge(facts(sources=[sent]))
    is_unchanged = not changed or not acknowledged
    is_there = all(sorted(numbers) == sorted(acknowledged) for numbers in at.values())
    assert (judged.verdict == Verdict.COMPLETE) == (is_there and is_unchanged)
    assert judged.verdict in (Verdict.COMPLETE, Verdict.INCOMPLETE)


tiers = st.sampled_from(["dc1", "dc2", OFFLINE, WAREHOUSE, TABLE])
origins = st.sampled_from(["dc1", "dc2"])
flags = st.booleans()
gaps = st.builds(
    Gap,
    kind=st.sampled_from([*GapKind]),
    tier=st.one_of(st.just(""), tiers),
    origin=origins,
    since=st.just(W),
    until=st.sampled_from([W + 1, FOR_EVER]),
    is_late=flags,
    hides_missing=flags,
    is_recounted=flags,
)
instances = st.builds(
    replace,
    st.just(SHOP),
    cluster=origins,
    announced=flags,
    closed_through=st.sampled_from([W, FOR_EVER]),
    accepted=st.sampled_from([None, "burnt down"]),
    missing_reports=st.sampled_from([(), ((3, 4),)]),
    first_report=st.sampled_from([0, 2]),
)


reports = st.builds(
    lambda good, bad, fingerprinted: Reported(
        as_flat(good), prints(11, pairs_of(good)), as_flat(bad), prints(11, pairs_of(bad)), fingerprinted
    ),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(4, 6)),
    flags,
)
sources = st.builds(
    lambda instance, reported, at, aborted: Source(
        instance,
        reported if instance.announced else Reported(),
        {tier: held(tier, *numbers) for tier, numbers in at.items()},
        as_flat(aborted),
    ),
    instances,
    reports,
    st.dictionaries(tiers, piles, max_size=4),
    st.sets(st.integers(0, 6)),
)
numbers = st.integers(0, 3)
rejected = st.builds(
    Rejected, numbers, numbers, numbers, st.just("not Avro"), st.sampled_from([None, "fine"]), flags
)
legs = st.lists(
    st.builds(Leg, st.one_of(st.just(""), origins), tiers, st.sampled_from([*LegState]), flags),
    max_size=8,
    unique_by=lambda leg: (leg.origin, leg.tier),
)
unkeyed = st.dictionaries(origins, st.dictionaries(tiers, st.tuples(numbers, numbers)))
any_facts = st.builds(
    WindowFacts,
    topic=st.just("T"),
    start=st.just(W),
    special=st.sampled_from([None, None, None, *Special]),
    is_announced=flags,
    is_counted=flags,
    has_events=flags,
    origins=st.just(["dc1"]),
    readers=st.lists(st.builds(Reader, tiers, st.sampled_from([*ReaderState])), max_size=2),
    streams=st.lists(st.builds(ReportStream, origins, st.sampled_from([*StreamState])), max_size=2),
    debts=st.lists(st.builds(Debt, instances, st.sampled_from([*DebtState])), max_size=2),
    more_debts=st.dictionaries(st.sampled_from([*DebtState]), numbers),
    accepted=st.lists(st.builds(replace, instances, accepted=st.just("burnt down")), max_size=1),
    more_accepted=numbers,
    gaps=st.lists(gaps, max_size=3),
    legs=legs,
    pending_reports=st.lists(origins, max_size=1),
    problems=st.lists(st.builds(VerifyProblem, st.just("bad"), flags), max_size=1),
    lost_loads=st.lists(st.builds(LostLoad, numbers, st.one_of(st.none(), numbers), numbers), max_size=1),
    has_other_editions=flags,
    table_troubles=st.lists(st.just(TableTrouble(W, "it is gone")), max_size=1),
    lost_reports=st.lists(st.just(LATE), max_size=1),
    are_unkeyed_rows_known=flags,
    rejected=st.lists(rejected, max_size=2),
    has_too_many_ranges=flags,
    sources=st.lists(sources, max_size=3),
    unkeyed=unkeyed,
    unkeyed_rows=st.fixed_dictionaries(
        {}, optional={WAREHOUSE: st.tuples(numbers, numbers), TABLE: st.tuples(numbers)}
    ),
    erased=numbers,
    uncounted=st.lists(st.builds(UncountedRows, numbers, numbers), max_size=2),
)


@given(any_facts)
@settings(max_examples=200)
def test_any_facts_are_judged_and_each_cause_has_its_texts(some: WindowFacts) -> None:
    judged = judge(some)
    assert judged.verdict == overall(cause.verdict for cause in judged.causes)
    for cause in judged.causes:
        assert cause.reason
        assert "{" not in cause.reason + cause.command + cause.key
        assert "None" not in cause.reason + cause.command + cause.key, cause


@given(any_facts, gaps)
@settings(max_examples=200)
def test_a_further_gap_never_makes_a_window_complete_or_carried(some: WindowFacts, more: Gap) -> None:
    before, after = judge(some).verdict, judge(replace(some, gaps=[*some.gaps, more])).verdict
    if before not in (Verdict.COMPLETE, Verdict.CARRIED):
        assert after not in (Verdict.COMPLETE, Verdict.CARRIED)


@given(any_facts, st.sampled_from([*LegState]))
def test_a_window_with_a_leg_that_is_not_read_is_never_complete(some: WindowFacts, state: LegState) -> None:
    assume(state not in (LegState.READ, LegState.NOT_REACHED) and some.special is None)
    waiting = [Reader("dc3", ReaderState.CURRENT)] if state == LegState.OPEN else []
    facts = replace(some, legs=[*some.legs, Leg("dc3", OFFLINE, state)], readers=waiting)
    assert judge(facts).verdict not in (Verdict.COMPLETE, Verdict.CARRIED)


@given(any_facts, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_the_order_of_facts_does_not_matter(some: WindowFacts, dice: Random) -> None:
    shuffled: dict[str, Any] = {
        name: dice.sample(values, len(values))
        for name in ("legs", "gaps", "sources", "debts", "readers", "streams", "rejected", "problems")
        for values in [[*getattr(some, name)]]
    }
    one, other = judge(some), judge(replace(some, **shuffled))
    # An unproven difference names one of the gaps that may explain it.
    keys = [sorted((c.rule, c.verdict, c.key) for c in judged.causes) for judged in (one, other)]
    assert keys[0] == keys[1]
