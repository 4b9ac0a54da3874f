"""The verdict as a table: every rule that makes a window less than complete, in the order of its reasons.

A rule finds *hits* in the facts of a window. The verdict is that of the worst hit, and `complete` without
hits. No rule depends on another rule. To add a rule:

1. Write a condition and a row. Reasons are listed in the order of the rows; a note may be anywhere among
   the notes.
2. If no fact decides the rule, add one first: the head of `facts.py` says what a fact must be, and where it
   is read.
3. Add an example to `test_rules.EXAMPLES`, and a new fact to `any_facts` there. Test how a new fact is read
   with a `Story` of `tests/unit/audit/story.py`, also with all records applied at once.
4. Print the table into docs/audit-verdict.md: `python -m tests.unit.audit.printed_rules`.

A note can fire on an open window, so a note about too few events must ask whether the homes have read it. A
rule about an hour has a hit in each window of the hour, and a window can be judged before its hour is over:
whatever completes the fact must then mark the hour's windows as changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from shlex import quote
from typing import Any

from millrace_audit.answer import Finding, Instance, Verdict, iso, overall, sender
from millrace_audit.auditor.verdict import reconcile
from millrace_audit.auditor.verdict.facts import (
    DebtState,
    Gap,
    GapKind,
    LegState,
    ReaderState,
    Source,
    Special,
    StreamState,
    WindowFacts,
)
from millrace_audit.auditor.verdict.reconcile import Difference
from millrace_audit.reports.messages import NOTHING, OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.ranges import in_words

INCOMPLETE, UNKNOWN, PENDING, CARRIED = Verdict.INCOMPLETE, Verdict.UNKNOWN, Verdict.PENDING, Verdict.CARRIED
NOTE = Verdict.COMPLETE
"""Verdict of a note: a rule that adds a reason and leaves the verdict as it is."""


class Case:
    """Facts of one window, with what several rules need of them."""

    def __init__(self, facts: WindowFacts) -> None:
        self.facts = facts

    @cached_property
    def differences(self) -> list[Difference]:
        return reconcile.differences(self.facts)

    @cached_property
    def unreported(self) -> list[Source]:
        """Sources with events whose producers have not announced themselves."""
        return [source for source in self.facts.sources if source.observed and not source.instance.announced]


Hit = dict[str, Any]
"""Values for the texts of a rule; `finding` for a rule about a difference."""
Find = Callable[[Case], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Row of the table."""

    name: str
    verdict: Verdict
    when: str
    """The condition in words."""
    find: Find
    reason: str
    command: str = ""
    """Next command for the operator; empty if there is nothing to do but wait."""
    cause: str = ""
    """Key of the cause: windows with the same rule and key have one cause."""
    runbook: str = ""
    """Heading in docs/runbooks.md."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Hit with its texts."""

    rule: str
    verdict: Verdict
    reason: str
    command: str
    key: str
    finding: Finding | None
    service: str = ""
    """Service and server of the producer that the cause is about; empty for none."""
    server: str = ""

    @property
    def text(self) -> str:
        return f"{self.reason}: `{self.command}`" if self.command else self.reason


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict on a window, with its causes in the order of the table."""

    verdict: Verdict
    causes: list[Cause]

    @property
    def is_final(self) -> bool:
        """True if nothing is awaited any more."""
        return not any(cause.verdict in (UNKNOWN, PENDING) for cause in self.causes)

    @property
    def findings(self) -> list[Finding]:
        return [replace(c.finding, command=c.command) for c in self.causes if c.finding is not None]

    @property
    def reasons(self) -> list[str]:
        return [*dict.fromkeys(cause.text for cause in self.causes if cause.finding is None)]


def judge(facts: WindowFacts) -> Judged:
    """The verdict on a window."""
    found = [*causes(facts)]
    return Judged(overall(cause.verdict for cause in found), found)


def causes(facts: WindowFacts, verdicts: Sequence[Verdict] = tuple(Verdict)) -> Iterator[Cause]:
    """Yield the causes of a window with one of the verdicts, in the order of the table."""
    case = Case(facts)
    for rule in RULES if facts.special is None else SPECIAL_RULES:
        if rule.verdict in verdicts:
            for hit in rule.find(case):
                yield _cause(rule, hit, facts)


class _Quoted(dict[str, Any]):
    """Values quoted for a shell: operators run commands, and clients choose names."""

    def __getitem__(self, name: str) -> str:
        return quote(str(super().__getitem__(name)))


def _cause(rule: Rule, hit: Hit, facts: WindowFacts) -> Cause:
    values = {"topic": facts.topic, "hour": iso(facts.hour), **hit}
    reason, key = (text.format(**values) for text in (rule.reason, rule.cause))
    command = rule.command.format_map(_Quoted(values))
    producer = hit.get("service", ""), hit.get("server", "")
    return Cause(rule.name, rule.verdict, reason, command, key, hit.get("finding"), *producer)


# Conditions. Each finds hits in the facts that its rule is about.


def _if(fact: Callable[[WindowFacts], object]) -> Find:
    """One hit if a fact is true, or a number that is not 0."""
    return lambda case: [{"number": value}] if (value := fact(case.facts)) else []


def _each(facts: str, **wanted: object) -> Find:
    """A hit for each fact of a kind with the wanted values."""

    def find(case: Case) -> Iterator[Hit]:
        for fact in getattr(case.facts, facts):
            if all(getattr(fact, name) == value for name, value in wanted.items()):
                yield _values(fact)

    return find


_TIMES = {"since", "until", "watermark", "applied_through"}


def _values(fact: Any) -> Hit:
    """The values of a fact, with times as text."""
    values = {each.name: getattr(fact, each.name) for each in fields(fact)}
    return {name: iso(value) if name in _TIMES else value for name, value in values.items()}


def _readers(state: ReaderState) -> Find:
    def find(case: Case) -> Iterator[Hit]:
        for hit in _each("readers", state=state)(case):
            yield {**hit, "option": "tier" if hit["tier"] == OFFLINE else "cluster"}

    return find


def _legs(state: LegState) -> Find:
    def find(case: Case) -> Iterator[Hit]:
        for leg in case.facts.legs:
            if leg.state == state:
                before = OFFLINE if leg.tier == WAREHOUSE else leg.origin
                since = iso(case.facts.read_at.get(before, NOTHING))
                origins = ", ".join(case.facts.origins)
                gaps = [gap for gap in case.facts.gaps if gap.tier == leg.tier and gap.is_ongoing]
                why = gap_text(gaps[0], case.facts.topic) if gaps else "its log cannot be read any further"
                yield {"origin": leg.origin, "since": since, "origins": origins, "why": why}

    return find


def _debts(state: DebtState) -> Find:
    return lambda case: (_of_producer(debt.instance) for debt in case.facts.debts if debt.state == state)


def _more_debts(*states: DebtState) -> Find:
    return _if(lambda facts: sum(facts.more_debts.get(state, 0) for state in states))


def _of_producer(one: Instance) -> Hit:
    closed = "nothing" if one.closed_through == NOTHING else f"only {iso(one.closed_through)}"
    debt = f"{one.name} has closed {closed}"
    if one.missing_reports:
        debt = f"report {in_words(one.missing_reports)} of {one.name} is missing"
    return {
        "name": one.name,
        "instance": one.instance,
        "service": one.service,
        "server": one.server,
        "debt": debt,
        "heard": iso(one.heard_at),
        "accepted": one.accepted,
    }


def _different(kind: str, *tiers: str, is_home: bool = False) -> Find:
    """Unexplained differences of a kind: at the home, at some tiers behind it, or at any tier."""

    def find(case: Case) -> Iterator[Hit]:
        for each in case.differences:
            here = is_home if each.finding.tier == each.home else each.finding.tier in tiers
            is_explained = each.gap is not None or each.is_given_up or each.is_uncounted
            if each.finding.kind == kind and here and not is_explained:
                yield _of_difference(each)

    return find


def _unproven(case: Case) -> Iterator[Hit]:
    for each in case.differences:
        if each.gap is not None:
            yield {**_of_difference(each), "finding": None, "gap": gap_text(each.gap, case.facts.topic)}


def _uncounted(case: Case) -> Iterator[Hit]:
    for each in case.differences:
        for rows in case.facts.uncounted if each.is_uncounted else ():
            yield {**_of_difference(each), "finding": None, **_values(rows)}


def _of_difference(difference: Difference) -> Hit:
    finding = difference.finding
    who, sequences = finding.service, in_words(finding.sequences)
    if sequences:
        names = sender(finding.server, finding.service)
        who = f"instance {finding.instance} ({names}), sequences {sequences}"
    before = reconcile.before(finding.tier, difference.home)
    return {**_values(finding), "finding": finding, "before": before, "who": who}


def _two_homes(case: Case) -> Iterator[Hit]:
    for first, second, both in reconcile.at_two_homes(case.facts):
        one, (home, other) = first.instance, sorted((first.home, second.home))
        who = f"instance {one.instance} ({sender(one.server, one.service)}), sequences {in_words(both)}"
        yield {
            "count": len(both),
            "home": home,
            "other": other,
            "who": who,
            "service": one.service,
            "server": one.server,
        }


def _given_up(case: Case) -> Iterator[Hit]:
    if count := sum(each.finding.count for each in case.differences if each.is_given_up):
        yield {"count": count}


def _aborted(case: Case) -> Iterator[Hit]:
    counts = Counter[str]()
    for source in case.facts.sources:
        counts[source.home] += len(reconcile.aborted_of(source))
    for home, count in sorted((+counts).items()):
        yield {"home": home, "count": count}


def _reports_lost_late(case: Case) -> Iterator[Hit]:
    """Unreported events at an origin whose reports of that time are lost."""
    partly_reported = (s for s in case.facts.sources if s.observed and s.instance.first_report > 0)
    homes = {source.home for source in (*case.unreported, *partly_reported)}
    for gap in case.facts.gaps:
        if gap.is_late and not gap.tier and gap.origin in homes:
            yield {"gap": gap_text(gap, case.facts.topic), "origin": gap.origin}


def _reports_not_applied(case: Case) -> Iterator[Hit]:
    for origin in sorted({source.home for source in case.unreported} & {*case.facts.pending_reports}):
        yield {"origin": origin}


def unreported_messages(facts: WindowFacts) -> int:
    """Messages that no producer reported, counted from the first cluster on."""
    unkeyed = sum(max((t[0] for t in tiers.values()), default=0) for tiers in facts.unkeyed.values())
    sources = (source for source in facts.sources if not source.instance.announced)
    sizes = ([reconcile.size(held.ranges) for held in source.observed.values()] for source in sources)
    return unkeyed + sum(max(each, default=0) for each in sizes)


def _unreported_of_silent(case: Case) -> Iterator[Hit]:
    for source in case.facts.sources:
        one = source.instance
        if one.announced and reconcile.may_report(one, case.facts.end):
            reported = reconcile.reported_of(source)
            if rest := reconcile.present_anywhere(source) - reported:
                last = f"through sequence {reported.last}" if reported else "nothing"
                judged = "; they are judged like failed ones" if one.accepted is not None else ""
                yield {"name": one.name, "last": last, "count": len(rest), "judged": judged}


def _sources(which: Callable[[Source], bool]) -> Find:
    return lambda case: (_of_producer(source.instance) for source in case.facts.sources if which(source))


ACCEPT = 'millrace audit --accept {instance} --reason "…"'
ACCEPT_SERVICE = 'millrace audit --accept-service NAME --reason "…"'
REPLACE = 'millrace audit {topic} --replace-loads --reason "…"'
REJECTED_RECORDS = "curl AUDITOR/v1/rejected-records"

SPECIAL_RULES = (
    Rule("topic-unknown", UNKNOWN, "No producer and no reader has ever named the topic.",
         _if(lambda facts: facts.special == Special.UNKNOWN_TOPIC),
         "no producer and no reader has named topic {topic}", "millrace topics list", "{topic}"),
    Rule("window-deleted", UNKNOWN, "The window is older than `--keep-days` and was deleted.",
         _if(lambda facts: facts.special == Special.DELETED),
         "the window is older than --keep-days, and what was known of it is deleted"),
    Rule("being-judged", PENDING, "New facts about the window have arrived.",
         _if(lambda facts: facts.special == Special.BEING_JUDGED),
         "new facts about the window are being judged"),
    Rule("in-the-future", PENDING, "The window is later than the auditor's clock.",
         _if(lambda facts: facts.special == Special.IN_THE_FUTURE),
         "the window is still to come: check the clock of its producer"),
)  # fmt: skip
"""Rules for a window of which no other fact matters."""

RULES = (
    # incomplete: wrong for good, whatever is still awaited
    Rule("missing-at-home", INCOMPLETE, "The home has read the window and lacks acknowledged events.",
         _different("missing", is_home=True),
         "{count} missing at {tier}, where they were acknowledged ({who})", "millrace log verify DIR",
         "{tier}", "MillraceEventsMissing"),
    Rule("missing-at-offline", INCOMPLETE,
         "The aggregate cluster has read the window and lacks the home's events.",
         _different("missing", OFFLINE),
         "{count} missing at {tier}, present at {before} ({who})", "millrace mirror status CONFIG",
         "{before}", "MillraceEventsMissing"),
    Rule("missing-at-warehouse", INCOMPLETE, "All loads of the window are counted, and rows are missing.",
         _different("missing", WAREHOUSE),
         "{count} missing at {tier}, present at {before} ({who})",
         'millrace reload {topic} --hour {hour} --reason "…"', "{topic}", "MillraceEventsMissing"),
    Rule("missing-in-table", INCOMPLETE, "The published table lacks rows of the warehouse.",
         _different("missing", TABLE),
         "{count} missing in the table, present in the warehouse ({who})",
         "millrace publish {topic} --rebuild", "{topic}", "MillraceEventsMissing"),
    Rule("duplicate-at-home", INCOMPLETE, "The home holds an event more than once.",
         _different("duplicate", is_home=True),
         "{count} duplicate at {tier} ({who})", "millrace log dump DIR", "{tier}", "MillraceEventsMissing"),
    Rule("duplicate-behind", INCOMPLETE, "A later tier holds an event more often than the tier before.",
         _different("duplicate", OFFLINE, WAREHOUSE, TABLE),
         "{count} duplicate at {tier} ({who})", "millrace verify {topic} --warehouse WAREHOUSE", "{tier}",
         "MillraceEventsMissing"),
    Rule("unexpected", INCOMPLETE, "A tier holds events that were neither reported nor in the tier before.",
         _different("unexpected", OFFLINE, WAREHOUSE, TABLE, is_home=True),
         "{count} unexpected at {tier} ({who})", REJECTED_RECORDS, "{tier}", "MillraceRejectedRecords"),
    Rule("altered", INCOMPLETE, "A tier holds the right events with other content.",
         _different("altered", OFFLINE, is_home=True),
         "{count} altered at {tier} ({who})", "millrace log dump DIR", "{tier}", "MillraceEventsMissing"),
    Rule("two-homes", INCOMPLETE, "Events are at two homes, and not both homes' producers reported them.",
         _two_homes,
         "{count} events are at {home} and at {other} ({who}): something copied them from one to the other",
         "millrace mirror status CONFIG", "{home}+{other}", "MillraceEventsMissing"),
    Rule("rejected-by-load", INCOMPLETE,
         "A load set messages of the window aside, and no operator gave them up.",
         _each("rejected", is_accepted=False),
         "load {load} rejected {messages} messages ({reason}): give them up with --accept-rejected {load}, or"
         " reload them once they can be decoded", 'millrace reload {topic} --loads {load} --reason "…"',
         "{topic}/{load}", "MillraceRecordsRejected"),
    Rule("load-lost", INCOMPLETE, "A load of the hour was counted and is gone from the warehouse.",
         _each("lost_loads", is_hour_known=True),
         "load {load} was counted with {rows} rows and is gone: the warehouse's newest load is {newest};"
         " restore a newer copy, or load again and replace", REPLACE, "{topic}", "MillraceEventsMissing"),
    Rule("verify-problem", INCOMPLETE, "`millrace verify` found a problem of the hour.",
         _each("problems", is_of_topic=False),
         "`millrace verify` found: {text}", "", "{topic}/{hour}", "MillraceEventsMissing"),
    # unknown: something that must be known cannot be known now
    Rule("reader-never-started", UNKNOWN, "A reader that the window waits for has never sent a heartbeat.",
         _readers(ReaderState.NEVER_SEEN),
         "{tier} has sent no heartbeat", "millrace audit-reader --{option} {tier}",
         "{tier}", "MillraceTierBehind"),
    Rule("reader-stale", UNKNOWN, "A reader that the window waits for has counted nothing for a minute.",
         _readers(ReaderState.STALE),
         "the reader of {tier} is stale: it counted through {watermark}",
         "millrace audit-reader --{option} {tier}", "{tier}", "MillraceTierBehind"),
    Rule("reports-stuck", UNKNOWN, "Reports from an origin are more than a minute behind its reader.",
         _each("streams", state=StreamState.STUCK),
         "reports from {origin} are read through {applied_through} only; check the mirror of `audit`",
         "millrace mirror status CONFIG", "{origin}", "MillraceMirrorBehind"),
    Rule("report-missing", UNKNOWN, "A report of a producer is missing.", _debts(DebtState.REPORT_MISSING),
         "{debt}", ACCEPT, "producer {instance}", "MillraceWatermarkOld"),
    Rule("producer-silent", UNKNOWN,
         "A producer has not closed the window, and has stopped sending reports.",
         _debts(DebtState.SILENT),
         "{debt}; its last report came at {heard}", ACCEPT, "producer {instance}", "MillraceWatermarkOld"),
    Rule("more-producers-silent", UNKNOWN, "Further producers are silent or miss a report.",
         _more_debts(DebtState.SILENT, DebtState.REPORT_MISSING),
         "{number} more instances are silent or miss a report", ACCEPT_SERVICE, "{topic}",
         "MillraceWatermarkOld"),
    Rule("reports-lost", UNKNOWN, "Reports from an origin were lost before the auditor read them.",
         _each("gaps", kind=GapKind.REPORTS_LOST, is_late=False),
         "audit records were lost before the auditor read them: reports of the producers in {origin} from"
         " {since} to {until}", "", "{origin}"),
    Rule("reports-lost-late", UNKNOWN, "Unreported events lie where reports from their origin were lost.",
         _reports_lost_late,
         "{gap}", "", "{origin}"),
    Rule("too-many-producers", UNKNOWN, "More instances of the topic are open than may be.",
         _each("gaps", kind=GapKind.TOO_MANY_PRODUCERS, is_late=False),
         "too many instances of topic {topic} are open in {origin}: reports of further instances are not read"
         " since {since}", ACCEPT_SERVICE, "{origin}"),
    Rule("not-counted-in-full", UNKNOWN,
         "Messages expired, or a log was truncated, before they were counted.",
         _each("gaps", kind=GapKind.MESSAGES_NOT_COUNTED, is_late=False),
         "offsets {start} to {end} of partition {partition} were never counted in full at tier {tier}:"
         " messages or counts had expired, or the log was truncated, by {until}", "", "{tier}"),
    Rule("counts-lost", UNKNOWN, "Counts of a tier were lost before the auditor read them.",
         _each("gaps", kind=GapKind.COUNTS_LOST, is_late=False),
         "audit records were lost before the auditor read them: counts of {tier} from {since} to {until}", "",
         "{tier}"),
    Rule("partition-unreadable", UNKNOWN, "A partition cannot be read any further.",
         _each("gaps", kind=GapKind.UNREADABLE, is_late=False),
         "the log of {topic}-{partition} in {tier} cannot be read at offset {start}: {cause}",
         "millrace log verify DIR", "{tier}", "MillracePartitionUnreadable"),
    Rule("offline-blocked", UNKNOWN,
         "Events wait for a partition of the copy that cannot be read any further.",
         _legs(LegState.BLOCKED),
         "{why}", "millrace log verify DIR", "offline", "MillracePartitionUnreadable"),
    Rule("upstream-blocked", UNKNOWN,
         "A later tier is not compared with a home whose log cannot be read any further.",
         _legs(LegState.UPSTREAM_BLOCKED),
         "later tiers are not compared with {origin}, whose log cannot be read any further",
         "millrace log verify DIR", "{origin}", "MillracePartitionUnreadable"),
    Rule("difference-unproven", UNKNOWN, "Events seem wrong, and a gap may explain it.",
         _unproven,
         "{count} seem {kind} at {tier} ({who}), but {gap}", "", "{tier}"),
    Rule("rows-not-counted", UNKNOWN,
         "Rows without a header seem wrong, and as many may have been deleted before they were counted.",
         _uncounted,
         "{count} seem {kind} at {tier} ({who}), but `millrace expire` deleted the files with {rows} rows"
         " without a header of load {load} before `millrace audit-warehouse` counted them",
         'millrace reload {topic} --loads {load} --reason "…"', "{topic}/{load}"),
    Rule("topic-not-counted", UNKNOWN, "No events are known, and no reader counts the topic.",
         _if(lambda facts: not facts.is_counted),
         "no audit reader counts topic {topic}", "millrace audit-reader --topics …", "{topic}"),
    Rule("topic-not-counted-here", UNKNOWN, "The reader of an origin with events does not count the topic.",
         _legs(LegState.TOPIC_NOT_COUNTED),
         "the reader of {origin} has not counted topic {topic}; add it to the reader's --topics",
         "millrace audit-reader --cluster {origin} --topics …", "{origin}/{topic}"),
    Rule("origin-not-configured", UNKNOWN, "Events come from a cluster that is not among `--origins`.",
         _legs(LegState.ORIGIN_NOT_CONFIGURED),
         "events come from {origin}, which is none of {origins}", "millrace auditor --origins …", "{origin}"),
    Rule("load-lost-somewhere", UNKNOWN, "A load was counted and is gone, and its hours are not known.",
         _each("lost_loads", is_hour_known=False),
         "load {load} was counted, in hours that are not known, and is gone: the warehouse's newest load is"
         " {newest}; restore a newer copy, or load again and replace", REPLACE, "{topic}",
         "MillraceEventsMissing"),
    Rule("other-editions", UNKNOWN, "The warehouse has other editions of the hour's loads than were counted.",
         _if(lambda facts: facts.has_other_editions),
         "the warehouse has other editions of the hour's loads than were counted: restore a newer copy, or"
         " reload", 'millrace reload {topic} --hour {hour} --reason "…"', "{topic}"),
    Rule("table-not-counted", UNKNOWN,
         "The hour is published, and its table has not been readable for 15 minutes.",
         _each("table_troubles"),
         "the published table cannot be counted since {since} ({why})",
         "millrace verify {topic} --warehouse WAREHOUSE", "{topic}", "MillraceTableOld"),
    Rule("warehouse-reports-lost", UNKNOWN,
         "Records of the warehouse's reader were lost after it had counted the hour's table.",
         _each("lost_reports"),
         "records of `millrace audit-warehouse` were lost from {since} to {until}: the hour's table was"
         " counted before, and may have changed since",
         "millrace audit-warehouse --count-tables-again", "{serial}", "MillraceHoursUnknown"),
    Rule("verify-problem-of-topic", UNKNOWN, "`millrace verify` found a problem of the whole topic.",
         _each("problems", is_of_topic=True),
         "`millrace verify` found: {text}", "", "{topic}"),
    Rule("too-many-ranges", UNKNOWN, "More than 200,000 ranges of sequences were reported or counted.",
         _if(lambda facts: facts.has_too_many_ranges),
         "more than 200,000 ranges of sequences were reported or counted in it: find the producer that sends"
         " out of order, or in others' names", "", "{topic}"),
    # pending: nothing is wrong, something is on its way
    Rule("not-mirrored", PENDING, "The aggregate cluster holds nothing of the topic from an origin.",
         _legs(LegState.NOT_MIRRORED),
         "the aggregate cluster holds nothing of topic {topic} from {origin}; add it to the `topics` of"
         " [mirror.{origin}]", "millrace mirror status CONFIG", "{origin}/{topic}", "MillraceMirrorBehind"),
    Rule("in-flight", PENDING, "Events are counted at home, and not yet at the aggregate cluster.",
         _legs(LegState.IN_FLIGHT),
         "on its way from {origin} to offline since {since}", "", "{origin}"),
    Rule("not-loaded", PENDING, "Events are in the aggregate cluster, and in no counted load.",
         _legs(LegState.NOT_LOADED),
         "in the aggregate cluster since {since} and, by `millrace audit-warehouse`, not loaded yet",
         "millrace load {topic}", "{topic}", "MillraceJobOld"),
    Rule("unreported-yet", PENDING, "Unreported events lie where reports from their origin are still read.",
         _reports_not_applied,
         "{origin} has events that no producer reported; its reports are still read"),
    Rule("newest-not-counted", PENDING, "A reader has not passed the newest report or count of the window.",
         _legs(LegState.NOT_COUNTED),
         "what {origin} sent last is not counted yet"),
    Rule("producer-open", PENDING, "A producer has not closed the window.", _debts(DebtState.OPEN),
         "{debt} and may send more"),
    Rule("more-producers-open", PENDING, "Further producers have not closed the window.",
         _more_debts(DebtState.OPEN),
         "{number} more instances may send more"),
    Rule("reports-applying", PENDING, "Reports from an origin are being read.",
         _each("streams", state=StreamState.APPLYING),
         "reports from {origin} are still read"),
    Rule("window-open", PENDING, "A reader that the window waits for goes on counting.",
         _readers(ReaderState.CURRENT),
         "the reader of {tier} has not counted far enough, and goes on"),
    # carried: equal at every tier, and not all of it reported
    Rule("not-announced", CARRIED, "No audited producer announced the topic, and no events are known.",
         _if(lambda facts: not facts.is_announced and not (facts.has_events and facts.holds_events)),
         "no audited producer has announced topic {topic}: nobody says how many events there should be"),
    Rule("unreported", CARRIED, "Events that no producer reported are the same at every tier.",
         _if(unreported_messages),
         "some events were reported by no producer"),
    Rule("rejected-accepted", CARRIED, "An operator gave rejected messages up.",
         _each("rejected", is_accepted=True),
         "load {load} rejected {messages} messages ({reason}); accepted: {accepted}", "", "{topic}/{load}"),
    # notes: beside the verdict
    Rule("accepted", NOTE, "An operator accepted a producer in debt.",
         lambda case: map(_of_producer, case.facts.accepted),
         "{debt}; accepted: {accepted}"),
    Rule("more-accepted", NOTE, "An operator accepted further producers in debt.",
         _if(lambda facts: facts.more_accepted),
         "{number} more silent instances are accepted"),
    Rule("unreported-of-silent", NOTE, "A producer in debt has events that it never reported.",
         _unreported_of_silent,
         "{name} reported {last} here, and {count} events are counted that it never reported{judged}"),
    Rule("aborted", NOTE, "A transactional producer aborted transactions at the home.",
         _aborted,
         "{count} events at {home} lie in aborted transactions, and no tier may hold them"),
    Rule("disowned", NOTE, "An operator disowned a producer.",
         _sources(lambda source: source.instance.disowned),
         "reports of {name} do not count: {accepted}"),
    Rule("shared-number", NOTE, "Two producers seem to share an instance number.",
         _sources(reconcile.is_shared_number),
         "two producers share instance number {instance}: their messages differ"),
    Rule("given-up", NOTE, "Rows are missing of messages that a load rejected and an operator gave up.",
         _given_up,
         "{count} events with a header are not in the warehouse: they were rejected, and given up"),
)  # fmt: skip
"""Rules in the order in which reasons are shown, the worst verdict first."""


def gap_text(gap: Gap, topic: str) -> str:
    """The reason of the rule about a gap."""
    return judge(WindowFacts(topic=topic, start=0, gaps=[replace(gap, is_late=False)])).causes[0].reason
