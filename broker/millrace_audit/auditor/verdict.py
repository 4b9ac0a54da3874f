"""What the audit concludes of one topic's ten minutes. Pure logic.

A window is *final* when nothing more can be said about it: every origin's heartbeat is past its end plus
grace, and every producer instance of the topic has closed it and misses no report. Its events go from their
own cluster, the home, to `offline` and to `warehouse`; of each tier is known whether it is *past* the window,
so that what it lacks then it lacks for good. The worst that holds is the verdict:

    incomplete   a tier lacks something, holds it twice or changed, or has what is nowhere before it
    unknown      somebody who has to say something is silent, or cannot say it: who, and why
    pending      nothing is wrong, something is on its way: where, and since when
    carried      all is well as far as it was reported, and what was not is the same at every tier
    complete     at every tier each acknowledged sequence is there exactly once, and nothing else

What `millrace verify` has found in the window's hour makes it incomplete, too, and so do messages that a load
rejected and loads that the warehouse has lost; the circumstances say so.

What is wrong is said of the first tier where it is. What has an unknown outcome (failed, or never reported
by an instance that an operator accepted) may be there or not, but in one way: what is at one tier must be at
all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from millrace_audit.answer import DOWNSTREAM, Finding, Instance, Verdict, Window, overall, utc
from millrace_audit.auditor.circumstances import Circumstances, silent_about
from millrace_audit.auditor.evidence import Evidence, Held, Said, pairs
from millrace_audit.reports.counts import WINDOW_MS, SequenceTally
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.seals import wrapped

FOREIGN = "messages without a header"
MOST_REASONS = 20
"""Most reasons that a window lists; the others are counted."""
_WITHOUT_CONTENT = (WAREHOUSE, TABLE)
"""A row is no message any more: nobody can take its fingerprint."""


@dataclass(slots=True)
class _Entry:
    """One producer of one origin in the window."""

    instance: Instance
    said: Said
    held: dict[str, Held] = field(default_factory=dict)
    is_published: bool = False
    """The table has the window, and all that was loaded of it."""

    @property
    def home(self) -> str:
        return self.instance.cluster

    @property
    def tiers(self) -> list[str]:
        return [*dict.fromkeys((self.home, *DOWNSTREAM, *([TABLE] if self.is_published else [])))]


def judge(
    window: int, evidence: Evidence, producers: Mapping[int, Instance], around: Circumstances
) -> Window:
    """The verdict on the ten minutes from `window`; `producers` by the numbers in the evidence."""
    if is_published := any(tier == TABLE for _, tier in around.past):
        evidence.held.setdefault(TABLE, {})
    else:
        evidence.held.pop(TABLE, None)  # it is behind what was loaded: that is no loss
    entries = _entries(evidence, producers)
    for entry in entries:
        entry.is_published = is_published
    end = window + WINDOW_MS
    notes = [note for entry in entries for note in _silence(entry, end)]
    found = [(entry.home, finding) for entry in entries for finding in _findings(entry, end, around)]
    found += _foreign_findings(evidence, around)
    found += _unkeyed_findings(evidence, around, is_published)
    found, given_up = _without_given_up(found, around)
    notes += given_up
    excuses = [around.excuse(finding, home) for home, finding in found]
    findings = [finding for (_, finding), excuse in zip(found, excuses, strict=True) if excuse is None]
    waiting = [*around.waiting, *((Verdict.UNKNOWN, excuse) for excuse in excuses if excuse is not None)]
    verdicts = [verdict for verdict, _ in waiting]
    if findings:
        verdicts.append(Verdict.INCOMPLETE)
    foreign = _without_header(evidence, is_published)
    unreported = [entry for entry in entries if entry.held and not entry.instance.announced]
    carried = sum(
        max((messages for messages, _ in tiers.values()), default=0) for tiers in evidence.foreign.values()
    ) + sum(max((_size(held.ranges) for held in entry.held.values()), default=0) for entry in unreported)
    if carried:
        verdicts.append(Verdict.CARRIED)
    for verdict, text in _not_heard(entries, unreported, around):
        verdicts.append(verdict)
        notes.append(text)
    said = [entry.said for entry in entries]
    return Window(
        start=utc(window),
        end=utc(end),
        verdict=overall(verdicts),
        revision=0,
        acknowledged=sum(len(_acknowledged(w)) if w.failed else _size(w.acknowledged) for w in said),
        failed=sum(len(SequenceRanges(pairs(w.failed))) for w in said if w.failed),
        tiers=_totals(entries, foreign, is_published),
        findings=findings,
        reasons=_at_most([*dict.fromkeys((*(text for _, text in waiting), *around.notes, *notes))]),
        carried=carried,
        foreign=dict(foreign),
        rejected=sum(each.messages for each in around.rejected),
    )


def _without_header(evidence: Evidence, is_published: bool) -> Counter[str]:
    """Count the messages and rows without an audit header at each tier."""
    found: Counter[str] = Counter()
    for tier, rows in evidence.unkeyed.items():
        if rows[0] and (tier != TABLE or is_published):
            found[tier] = rows[0]
    for tiers in evidence.foreign.values():
        found.update({tier: messages for tier, (messages, _) in tiers.items()})
    return found


def _not_heard(
    entries: Sequence[_Entry], unreported: Sequence[_Entry], around: Circumstances
) -> Iterator[tuple[Verdict, str]]:
    """Yield reports that may still come, or are lost, about events present without a whole report."""
    for origin in sorted({entry.home for entry in unreported} & around.unheard):
        text = f"{origin} has events that nobody has reported; what its producers say is still read"
        yield Verdict.PENDING, text
    told_in_part = [entry for entry in entries if entry.held and entry.instance.first_report > 0]
    for origin in sorted({entry.home for entry in (*unreported, *told_in_part)} & around.deaf.keys()):
        yield Verdict.UNKNOWN, around.deaf[origin]


def _at_most(reasons: list[str]) -> list[str]:
    more = len(reasons) - MOST_REASONS
    return reasons if more <= 0 else [*reasons[:MOST_REASONS], f"and {more} more"]


def _entries(evidence: Evidence, producers: Mapping[int, Instance]) -> list[_Entry]:
    entries: dict[int, _Entry] = {}
    by_names: defaultdict[tuple[int, str, str], list[_Entry]] = defaultdict(list)
    for number in sorted(evidence.producers(), key=lambda n: _order(producers[n])):
        instance = producers[number]
        if not instance.cluster:
            continue  # a load's: it knows no cluster
        said = evidence.said.get(number, Said()) if instance.announced else Said()
        entry = entries[number] = _Entry(instance, said)
        by_names[_names(instance)].append(entry)
        for tier, held in evidence.held.items():
            if number in held:
                entry.held[tier] = held[number]
    for tier, before in ((WAREHOUSE, OFFLINE), (TABLE, WAREHOUSE)):
        for number, there in evidence.held.get(tier, {}).items():
            same = by_names.get(_names(producers[number]))
            if same is None:  # loaded, and nobody has ever counted it before
                entries.setdefault(number, _Entry(producers[number], Said())).held[tier] = there
            else:
                same[0].held[tier] = there
        for same in by_names.values():
            _share_out(same, tier, before)
    return [*entries.values()]


def _order(instance: Instance) -> tuple[int, str, str, str, bool]:
    return (instance.instance, instance.server, instance.service, instance.cluster, not instance.announced)


def _names(instance: Instance) -> tuple[int, str, str]:
    return instance.instance, instance.server, instance.service


def _share_out(same: Sequence[_Entry], tier: str, before: str) -> None:
    """Of one name in several clusters: give each what it brought, and the rest of the tier to the first."""
    loaded = same[0].held.get(tier)
    if loaded is None or len(same) == 1:
        return
    left = SequenceTally(pairs(loaded.ranges))
    for entry in same:
        brought = SequenceTally(pairs(entry.held.get(before, Held()).ranges))
        lacking = brought.without(left)
        mine, left = brought.without(lacking), left.without(brought)
        entry.held[tier] = Held([n for pair in mine.ranges() for n in pair])
    first = same[0].held[tier]
    first.ranges += [n for pair in left.ranges() for n in pair]


def _silence(entry: _Entry, end: int) -> Iterator[str]:
    """What is to be said of the events of a silent instance, and of two producers with one number."""
    instance, said = entry.instance, entry.said
    if instance.disowned:
        yield f"what {instance.name} reported does not count: {instance.accepted}"
    if not instance.announced:
        return
    if silent_about(instance, end) is not None:
        told = SequenceRanges(pairs(said.acknowledged)) | SequenceRanges(pairs(said.failed))
        anywhere = SequenceRanges()
        for held in entry.held.values():
            anywhere = anywhere | _tally(held).present
        if unreported := anywhere - told:
            last = f"through sequence {told.last}" if told else "nothing"
            judged = "" if instance.accepted is None else "; they are judged like failed ones"
            yield (
                f"{instance.name} reported {last} here, and {len(unreported)} events are counted that it"
                f" never reported{judged}"
            )
    at_home = entry.held.get(entry.home)
    if at_home is not None and at_home.ranges != said.acknowledged:
        home = _tally(at_home)
        times = len(home.layers)
        is_repeated = times > 1 and home.layers == [SequenceRanges(pairs(said.acknowledged))] * times
        if is_repeated and home.fingerprint != wrapped(times * said.fingerprint):
            yield f"two producers share instance number {instance.instance}: their messages differ"


def _findings(entry: _Entry, end: int, around: Circumstances) -> Iterator[Finding]:
    """What is wrong with one producer's events, each at the first tier where it is."""
    if _is_in_order(entry, around):
        return
    instance, origin = entry.instance, entry.home
    told_all = instance.announced and silent_about(instance, end) is None
    accepted = not told_all and instance.accepted is not None
    told_in_part = instance.announced and (accepted or instance.first_report > 0)
    acknowledged, failed = _acknowledged(entry.said), SequenceRanges(pairs(entry.said.failed))
    tallies = {tier: _tally(entry.held.get(tier)) for tier in entry.tiers}
    behind = SequenceRanges()
    for tally in tallies.values():
        behind = behind | tally.present
    uncertain = behind - acknowledged if told_in_part else failed
    before: SequenceTally | None = None  # what the tier before holds; None where that is not known
    required = acknowledged | (uncertain & behind)
    reported = acknowledged | uncertain
    for tier in entry.tiers:
        tally, known = tallies[tier], tier not in around.doubted
        present = tally.present
        missing = required - present if known and (origin, tier) in around.past else SequenceRanges()
        unexpected = repeated = SequenceRanges()
        if tier == entry.home:
            repeated = tally.repeated
            if told_all and not told_in_part:
                unexpected = present - reported
        elif before is not None and (origin, tier) in around.ahead:
            unexpected = present - before.present - reported
            surplus = SequenceTally((*before.present | present, *_again(before)))
            repeated = tally.without(surplus).present
        elif before is None:
            repeated = tally.repeated
        sets = {"missing": missing, "duplicate": repeated, "unexpected": unexpected}
        if known and not any(sets.values()):
            sets["altered"] = _altered(entry, tier, tally, before, failed)
        names = (instance.server, instance.service, instance.instance)
        for kind, sequences in sets.items():
            if sequences:
                yield Finding(kind, tier, *names, sequences.pairs(), len(sequences))
        if known:
            # What is missing here is said; behind it all that is here must be, whoever reported it.
            required, before = present, tally
        else:
            required, before = required | present, None


def _is_in_order(entry: _Entry, around: Circumstances) -> bool:
    """The usual case, decided without set operations: every tier holds just what was acknowledged."""
    said = entry.said
    if not entry.instance.announced or said.failed:
        return False
    for tier in entry.tiers:
        held = entry.held.get(tier)
        if held is None:
            if said.acknowledged and (entry.home, tier) in around.past:
                return False
        elif held.ranges != said.acknowledged or (
            tier not in _WITHOUT_CONTENT and held.fingerprint != said.fingerprint
        ):
            return False
    return True


def _again(tally: SequenceTally) -> Iterator[tuple[int, int]]:
    for layer in tally.layers[1:]:
        yield from layer


def _altered(
    entry: _Entry, tier: str, tally: SequenceTally, before: SequenceTally | None, failed: SequenceRanges
) -> SequenceRanges:
    """What is there with other content than was sent, or than the tier before has."""
    if tier in _WITHOUT_CONTENT or not tally.present:
        return SequenceRanges()
    said = entry.said
    if tier == entry.home or before is None:
        acknowledged = _acknowledged(said)  # the fingerprint is without those that failed afterwards
        if tally.layers == [acknowledged]:
            expected = said.fingerprint
        elif failed and tally.layers == [acknowledged | failed]:
            expected = wrapped(said.fingerprint + said.failed_fingerprint)
        else:
            return SequenceRanges()
    elif tally.layers == before.layers:
        expected = before.fingerprint
    else:
        return SequenceRanges()
    return SequenceRanges() if tally.fingerprint == expected else tally.present


def _foreign_findings(evidence: Evidence, around: Circumstances) -> Iterator[tuple[str, Finding]]:
    """What is wrong with messages without a header: they are compared by number and content."""
    for origin, tiers in sorted(evidence.foreign.items()):
        if origin == OFFLINE or {origin, OFFLINE} & around.doubted or (origin, OFFLINE) not in around.past:
            continue
        here, there = tiers.get(origin, [0, 0]), tiers.get(OFFLINE, [0, 0])
        more = there[0] - here[0]
        if more > 0 and (origin, OFFLINE) not in around.ahead:
            continue
        kind = "missing" if more < 0 else "duplicate" if more else "altered" if here != there else ""
        if kind:
            yield origin, Finding(kind, OFFLINE, "", FOREIGN, 0, [], abs(more) or here[0])


def _unkeyed_findings(
    evidence: Evidence, around: Circumstances, is_published: bool
) -> Iterator[tuple[str, Finding]]:
    """Find the rows without a header that are missing or too many, in the warehouse and in the table."""
    rows, filed = evidence.unkeyed.get(WAREHOUSE, [0, 0])
    if ("", WAREHOUSE) in around.past and not {OFFLINE, WAREHOUSE} & around.doubted:
        offline = sum(tiers.get(OFFLINE, [0])[0] for tiers in evidence.foreign.values())
        aside = sum(each.messages - each.keyed for each in around.rejected)
        lacking = offline - rows - aside
        if lacking > around.set_aside and around.is_unkeyed_known:
            yield "", Finding("missing", WAREHOUSE, "", FOREIGN, 0, [], lacking - around.set_aside)
        if lacking < 0 and rows and ("", WAREHOUSE) in around.ahead:
            kind = "duplicate" if offline else "unexpected"
            yield "", Finding(kind, WAREHOUSE, "", FOREIGN, 0, [], min(-lacking, rows))
    if is_published and TABLE in evidence.unkeyed and around.is_unkeyed_known:
        (published,) = evidence.unkeyed[TABLE]
        if published != filed:
            kind = "missing" if published < filed else "duplicate" if filed else "unexpected"
            yield "", Finding(kind, TABLE, "", FOREIGN, 0, [], abs(published - filed))


def _without_given_up(
    found: list[tuple[str, Finding]], around: Circumstances
) -> tuple[list[tuple[str, Finding]], list[str]]:
    """Leave out events that the warehouse lacks because loads rejected them and an operator gave them up."""
    lacks = [each for _, each in found if (each.kind, each.tier) == ("missing", WAREHOUSE) and each.server]
    missing = sum(each.count for each in lacks)
    given_up = sum(each.keyed for each in around.rejected if each.accepted is not None)
    if not missing or missing > given_up:
        return found, []
    note = f"{missing} events with a header are not in the warehouse: they were rejected, and given up"
    return [(home, each) for home, each in found if each not in lacks], [note]


def _acknowledged(said: Said) -> SequenceRanges:
    """What was acknowledged; a failure after the fact takes the word back."""
    acknowledged = SequenceRanges(pairs(said.acknowledged))
    return acknowledged - SequenceRanges(pairs(said.failed)) if said.failed else acknowledged


def _tally(held: Held | None) -> SequenceTally:
    return SequenceTally(pairs(held.ranges), held.fingerprint) if held else SequenceTally()


def _size(flat: Sequence[int]) -> int:
    return sum(flat[1::2]) - sum(flat[::2]) + len(flat) // 2


def _totals(entries: Sequence[_Entry], foreign: Mapping[str, int], is_published: bool) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for entry in entries:
        if entry.home:
            totals[entry.home] += 0
        for tier, held in entry.held.items():
            totals[tier] += _size(held.ranges)
    tiers = (*DOWNSTREAM, *([TABLE] if is_published else []))
    return {**totals, **{tier: totals[tier] for tier in tiers}}
