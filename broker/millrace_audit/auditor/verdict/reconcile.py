"""Reconciliation: expected against observed events of each source at each tier. Pure functions.

Every difference is reported once, at the first tier that shows it: the home is compared with the producer's
reports, each later tier with the tier before it.

    missing      expected here, and not here
    duplicate    here more often than in the tier before
    unexpected   here, and neither reported nor in the tier before
    altered      the right sequences with other content

Events of aborted transactions are acknowledged, and no consumer sees them. No tier must hold them: an
acknowledged event is at the home or was aborted there, and an aborted event behind the home is unexpected.

Sequences of unknown outcome (failed, or never reported by an instance that an operator accepted) are
optional: they may be there or not, but what one tier has of them, all tiers must have.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

from millrace_audit.answer import Finding, Instance
from millrace_audit.auditor.verdict.evidence import Evidence, Observed, Reported, pairs
from millrace_audit.auditor.verdict.facts import Gap, Source, WindowFacts
from millrace_audit.reports.counts import SequenceTally
from millrace_audit.reports.fingerprints import added, agree, wrapped
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.ranges import SequenceRanges

UNKEYED = "messages without a header"
_WITHOUT_CONTENT = (WAREHOUSE, TABLE)
"""Tiers without fingerprints: they hold rows, not messages."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between what one tier holds and what it should hold, with its explanation."""

    home: str
    finding: Finding
    gap: Gap | None = None
    """Gap that may explain the difference."""
    is_given_up: bool = False
    """True if rejected messages that an operator gave up explain the difference."""
    is_uncounted: bool = False
    """True if rows that were deleted before they were counted may explain the difference."""


def before(tier: str, home: str) -> str:
    """The tier from which events reach this one."""
    return {OFFLINE: home, WAREHOUSE: OFFLINE, TABLE: WAREHOUSE}.get(tier, home)


def may_report(instance: Instance, end: int) -> bool:
    """True if the instance may still report something about the time before `end`."""
    return bool(instance.missing_reports) or not (instance.closed_through >= end or instance.idle)


def sources_of(evidence: Evidence, producers: Mapping[int, Instance], *, with_table: bool) -> list[Source]:
    """The sources of a window; `producers` by the numbers in the evidence."""
    if not with_table:
        evidence.observed.pop(TABLE, None)  # the table is older than the loads, which is no loss
    sources: dict[int, Source] = {}
    by_names: defaultdict[tuple[int, str, str], list[Source]] = defaultdict(list)
    by_instance: defaultdict[int, list[Source]] = defaultdict(list)
    for number in sorted(evidence.producers(), key=lambda n: _order(producers[n])):
        instance = producers[number]
        if not instance.cluster:
            continue  # a producer in loads, whose rows know no cluster
        reported = evidence.reported.get(number, Reported()) if instance.announced else Reported()
        observed = {tier: held[number] for tier, held in evidence.observed.items() if number in held}
        aborted = evidence.aborted.get(number, [])
        source = sources[number] = Source(instance, reported, observed, aborted)
        by_names[_names(instance)].append(source)
        by_instance[instance.instance].append(source)
    for tier in (WAREHOUSE, TABLE):
        loaded = evidence.observed.get(tier, {})
        for number in sorted(loaded, key=lambda n: _order(producers[n])):
            one, rows = producers[number], loaded[number]
            has_names = bool(one.server or one.service)
            same = by_names.get(_names(one)) if has_names else by_instance.get(one.instance)
            if same is None:  # loaded, and never counted at a cluster
                sources.setdefault(number, Source(one)).observed[tier] = rows
            else:
                _assign_rows(same, tier, rows)
    return [*sources.values()]


def _order(instance: Instance) -> tuple[int, str, str, str, bool]:
    return (*_names(instance), instance.cluster, not instance.announced)


def _names(instance: Instance) -> tuple[int, str, str]:
    return instance.instance, instance.server, instance.service


def _assign_rows(same: Sequence[Source], tier: str, rows: Observed) -> None:
    """Assign the rows of one producer at several homes: its own to each source, the rest to the first."""
    if len(same) == 1 and tier not in same[0].observed:  # the usual case
        same[0].observed[tier] = rows
        return
    left = _tally(rows)
    for source in same:
        there = _tally(source.observed.get(tier))
        brought = _tally(source.observed.get(before(tier, ""))).without(there)
        mine, left = brought.without(brought.without(left)), left.without(brought)
        source.observed[tier] = _observed(there, mine)
    same[0].observed[tier] = _observed(_tally(same[0].observed[tier]), left)


def _observed(*tallies: SequenceTally) -> Observed:
    """Return rows, which have no fingerprint."""
    whole = SequenceTally([pair for tally in tallies for pair in tally.ranges()])
    return Observed([number for pair in whole.ranges() for number in pair])


def differences(facts: WindowFacts) -> list[Difference]:
    """All differences of all sources, each with its explanation."""
    incomparable = {gap.tier for gap in facts.gaps if gap.tier and not gap.is_late}
    behind = facts.tiers_behind
    found = [
        Difference(source.home, finding)
        for source in facts.sources
        if not _is_in_order(facts, source, behind)
        for finding in _of_source(facts, source, behind, incomparable)
    ]
    found += _of_unkeyed(facts, incomparable)
    found += _of_unkeyed_rows(facts, incomparable)
    is_given_up = _are_given_up(facts, found)
    return [
        replace(each, is_given_up=True)
        if is_given_up and _is_lost_row(each.finding)
        else replace(each, gap=_gap(facts, each))
        for each in found
    ]


def _are_given_up(facts: WindowFacts, found: Sequence[Difference]) -> bool:
    """True if loads rejected as many messages as the warehouse lacks rows, and an operator gave them up."""
    rejected = sum(each.keyed for each in facts.rejected if each.accepted is not None and not each.is_span)
    return sum(each.finding.count for each in found if _is_lost_row(each.finding)) <= rejected


def _is_lost_row(finding: Finding) -> bool:
    """True for rows with a header that the warehouse lacks."""
    return (finding.kind, finding.tier) == ("missing", WAREHOUSE) and bool(finding.sequences)


def _gap(facts: WindowFacts, difference: Difference) -> Gap | None:
    """Return the late gap, or the gap of a log that was cut, that may explain the difference."""
    kind, tier, home = difference.finding.kind, difference.finding.tier, difference.home
    # Events without a header are compared by number: if some count twice, the next tier seems to lack them.
    is_lack_of_number = kind == "missing" and not difference.finding.sequences
    counted_twice = tier if kind == "duplicate" else before(tier, home) if is_lack_of_number else None
    for gap in facts.gaps:
        if gap.is_recounted and gap.tier == counted_twice:
            return gap
        if not gap.is_late:
            continue
        if kind == "missing":
            is_hidden = gap.hides_missing and gap.tier == tier
        elif tier == home:
            is_hidden = kind == "unexpected" and not gap.tier and gap.origin == home
        else:
            is_hidden = kind != "altered" and gap.tier == before(tier, home)
        if is_hidden:
            return gap
    return None


def _of_source(
    facts: WindowFacts, source: Source, behind: Sequence[str], incomparable: set[str]
) -> Iterator[Finding]:
    """Yield the differences in one source's events, each at the first tier that shows it."""
    instance, reported, home = source.instance, source.reported, source.home
    is_fully_reported = instance.announced and not may_report(instance, facts.end)
    is_accepted = not is_fully_reported and instance.accepted is not None
    is_partly_reported = instance.announced and (is_accepted or instance.first_report > 0)
    acknowledged = acknowledged_of(reported)
    failed = SequenceRanges(pairs(reported.failed))
    tallies = {tier: _tally(source.observed.get(tier)) for tier in dict.fromkeys((home, *behind))}
    anywhere = union(tally.present for tally in tallies.values())
    optional = anywhere - acknowledged if is_partly_reported else failed
    aborted = aborted_of(source)
    explained = (acknowledged | optional) - aborted
    expected = (acknowledged | (optional & anywhere)) - aborted
    previous: SequenceTally | None = None  # content of the tier before; None if unknown
    for tier, here in tallies.items():
        is_comparable = tier not in incomparable
        missing = unexpected = duplicate = altered = SequenceRanges()
        if is_comparable and facts.has_read(home, tier):
            missing = expected - here.present
        if tier == home:
            duplicate = here.repeated
            if is_fully_reported and not is_partly_reported:
                unexpected = here.present - explained
        elif previous is None:
            duplicate = here.repeated
        elif facts.leg(home, tier).is_surplus_final:
            unexpected = here.present - previous.present - explained
            duplicate = _more_often(here, previous)
        if is_comparable and not (missing or unexpected or duplicate):
            altered = _altered(source, tier, here, previous)
        names = (instance.server, instance.service, instance.instance)
        kinds = {"missing": missing, "duplicate": duplicate, "unexpected": unexpected, "altered": altered}
        for kind, sequences in kinds.items():
            if sequences:
                yield Finding(kind, tier, *names, sequences.pairs(), len(sequences))
        # The next tier must hold what this one holds. With a gap here, that is unknown.
        expected, previous = (here.present, here) if is_comparable else (expected | here.present, None)


def _is_in_order(facts: WindowFacts, source: Source, behind: Sequence[str]) -> bool:
    """The usual case, decided without set operations: every tier holds just what was acknowledged."""
    reported = source.reported
    if not source.instance.announced or reported.failed:
        return False
    known = reported if reported.fingerprinted else source.observed.get(source.home)
    if known is None:
        return False
    for tier in (source.home, *behind):
        held = source.observed.get(tier)
        if held is None:
            if reported.acknowledged and facts.has_read(source.home, tier):
                return False
        elif held.ranges != reported.acknowledged or (
            tier not in _WITHOUT_CONTENT and not agree(held.fingerprint, known.fingerprint)
        ):
            return False
    return True


def _more_often(here: SequenceTally, previous: SequenceTally) -> SequenceRanges:
    """Sequences that are here more often than in the tier before, and there at least once."""
    repeats = (pair for layer in previous.layers[1:] for pair in layer)
    return here.without(SequenceTally((*(previous.present | here.present), *repeats))).present


def _altered(
    source: Source, tier: str, here: SequenceTally, previous: SequenceTally | None
) -> SequenceRanges:
    """Sequences that are here with other content than was sent, or than the tier before has."""
    if tier in _WITHOUT_CONTENT or not here.present:
        return SequenceRanges()
    reported = source.reported
    if tier == source.home or previous is None:
        if not reported.fingerprinted:
            return SequenceRanges()
        acknowledged = acknowledged_of(reported)  # the fingerprint excludes later failures
        failed = SequenceRanges(pairs(reported.failed))
        if here.layers == [acknowledged]:
            expected = reported.fingerprint
        elif failed and here.layers == [acknowledged | failed]:
            expected = added(reported.fingerprint, reported.failed_fingerprint)
        else:
            return SequenceRanges()
    elif here.layers == previous.layers:
        expected = previous.fingerprint
    else:
        return SequenceRanges()
    return SequenceRanges() if agree(here.fingerprint, expected) else here.present


def _of_unkeyed(facts: WindowFacts, incomparable: set[str]) -> Iterator[Difference]:
    """Compare messages without a header by number and content, at the home and the aggregate cluster."""
    for origin, tiers in sorted(facts.unkeyed.items()):
        if origin == OFFLINE or {origin, OFFLINE} & incomparable or not facts.has_read(origin, OFFLINE):
            continue
        here, there = tiers.get(origin, [0, 0]), tiers.get(OFFLINE, [0, 0])
        more = there[0] - here[0]
        if more > 0 and not facts.leg(origin, OFFLINE).is_surplus_final:
            continue
        is_same = agree(here[1], there[1])
        kind = "missing" if more < 0 else "duplicate" if more else "" if is_same else "altered"
        if kind:
            yield Difference(origin, _unkeyed(kind, OFFLINE, abs(more) or here[0]))


def _of_unkeyed_rows(facts: WindowFacts, incomparable: set[str]) -> Iterator[Difference]:
    """Compare rows without a header by number, in the warehouse and in the table.

    The warehouse may have as many more rows as were deleted before they were counted.
    """
    uncounted = sum(each.rows for each in facts.uncounted)
    rows, filed = facts.unkeyed_rows.get(WAREHOUSE, [0, 0])
    if facts.has_read("", WAREHOUSE) and not {OFFLINE, WAREHOUSE} & incomparable:
        offline = sum(tiers.get(OFFLINE, [0])[0] for tiers in facts.unkeyed.values())
        rejected = sum(each.messages - each.keyed for each in facts.rejected if not each.is_span)
        set_aside = facts.erased + sum(each.messages for each in facts.rejected if each.is_span)
        lacking = offline - rows - rejected
        if lacking > set_aside and facts.are_unkeyed_rows_known:
            yield _unless_uncounted("missing", WAREHOUSE, lacking - set_aside, uncounted)
        if lacking < 0 and rows and facts.leg("", WAREHOUSE).is_surplus_final:
            kind = "duplicate" if offline else "unexpected"
            yield Difference("", _unkeyed(kind, WAREHOUSE, min(-lacking, rows)))
    if facts.is_table_compared and TABLE in facts.unkeyed_rows and facts.are_unkeyed_rows_known:
        (published,) = facts.unkeyed_rows[TABLE]
        if published < filed:
            yield Difference("", _unkeyed("missing", TABLE, filed - published))
        elif published > filed:
            kind = "duplicate" if filed else "unexpected"
            yield _unless_uncounted(kind, TABLE, published - filed, uncounted)


def _unless_uncounted(kind: str, tier: str, count: int, uncounted: int) -> Difference:
    """Return the difference that uncounted rows leave, or the difference that they may explain in full."""
    if count <= uncounted:
        return Difference("", _unkeyed(kind, tier, count), is_uncounted=True)
    return Difference("", _unkeyed(kind, tier, count - uncounted))


def _unkeyed(kind: str, tier: str, count: int) -> Finding:
    return Finding(kind, tier, "", UNKEYED, 0, [], count)


def at_two_homes(facts: WindowFacts) -> Iterator[tuple[Source, Source, SequenceRanges]]:
    """Sources of one name at two homes, with the sequences that both homes hold and not both have reported.

    What both have reported is of two producers with one number. The rest was copied from home to home.
    """
    by_names: defaultdict[tuple[int, str, str], list[Source]] = defaultdict(list)
    for source in facts.sources:
        by_names[_names(source.instance)].append(source)
    for same in by_names.values():
        for first, second in combinations(same, 2):
            if _is_known(facts, first) and _is_known(facts, second):
                here, there = (_tally(each.observed[each.home]).present for each in (first, second))
                if both := (here & there) - (reported_of(first) & reported_of(second)):
                    yield first, second, both


def _is_known(facts: WindowFacts, source: Source) -> bool:
    """True if the source's home has read its events, and its producer can report no more of them."""
    one, home = source.instance, source.home
    if home not in source.observed or not facts.has_read(home, home) or home in facts.pending_reports:
        return False
    if any(gap.origin == home and not gap.tier for gap in facts.gaps):
        return False
    return not one.announced or not (may_report(one, facts.end) or one.first_report > 0)


def reported_of(source: Source) -> SequenceRanges:
    """Sequences that the producer reported, acknowledged or failed."""
    reported = source.reported
    return SequenceRanges(pairs(reported.acknowledged)) | SequenceRanges(pairs(reported.failed))


def acknowledged_of(reported: Reported) -> SequenceRanges:
    """Return the acknowledged sequences that were not reported as failed afterwards."""
    acknowledged = SequenceRanges(pairs(reported.acknowledged))
    return acknowledged - SequenceRanges(pairs(reported.failed)) if reported.failed else acknowledged


def aborted_of(source: Source) -> SequenceRanges:
    """Return the sequences that the home holds only in aborted transactions."""
    aborted = SequenceRanges(pairs(source.aborted))
    return aborted - _tally(source.observed.get(source.home)).present if aborted else aborted


def present_anywhere(source: Source) -> SequenceRanges:
    """Sequences that some tier holds."""
    return union(_tally(held).present for held in source.observed.values())


def union(ranges: Iterable[SequenceRanges]) -> SequenceRanges:
    return reduce(operator.or_, ranges, SequenceRanges())


def _tally(held: Observed | None) -> SequenceTally:
    return SequenceTally(pairs(held.ranges), held.fingerprint) if held else SequenceTally()


def size(flat: Sequence[int]) -> int:
    """Number of sequences in a flat list of ranges."""
    return sum(flat[1::2]) - sum(flat[::2]) + len(flat) // 2


def is_shared_number(source: Source) -> bool:
    """True if two producers seem to use one instance number: all is there again, with other content."""
    held, reported = source.observed.get(source.home), source.reported
    if not source.instance.announced or held is None or held.ranges == reported.acknowledged:
        return False
    if not reported.fingerprinted:
        return False
    layers = _tally(held).layers
    is_repeated = len(layers) > 1 and layers == [SequenceRanges(pairs(reported.acknowledged))] * len(layers)
    return is_repeated and not agree(held.fingerprint, wrapped(len(layers) * reported.fingerprint))
