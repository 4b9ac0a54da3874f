"""How the circumstances of a topic's windows come about: who is heard of, and who has come how far.

Reads what the database says of tiers and instances once for all windows of a topic. Judges nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from sqlalchemy import ColumnElement, join, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from millrace_audit.answer import Instance, Verdict, iso, overall
from millrace_audit.auditor import store
from millrace_audit.auditor.beats import Beat, Ends, Progress
from millrace_audit.auditor.circumstances import Circumstances, silent_about
from millrace_audit.auditor.gaps import Gap, gaps_of
from millrace_audit.auditor.load_facts import LoadFacts, load_facts
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.store import CoverageRow, ProducerRow, TopicRow
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS
from millrace_audit.reports.messages import FOR_EVER, NOTHING, OFFLINE, TABLE, WAREHOUSE

MOST_UNCOUNTED = 100
"""Topics that are judged though no reader names them: who may produce to `audit` may make up any number."""
MOST_NAMED = 10
"""Most silent instances that a window names; the others are counted."""
STANDS_MS = 60_000
"""A tier that was not counted for so long stands: what waits for it is no longer just on its way."""


class _Silent:
    """Instances by how far they have closed: whoever holds windows up the longest comes first."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        awaited = [one for one in instances if not one.idle]
        self.instances = sorted(awaited, key=_closed_through)
        self.closed = [_closed_through(one) for one in self.instances]

    def at(self, end: int) -> tuple[Sequence[Instance], int]:
        """Of those that have not closed all before `end`: the first ones, and how many more there are."""
        count = bisect_left(self.closed, end)
        return self.instances[: min(count, MOST_NAMED)], max(count - MOST_NAMED, 0)


def _closed_through(instance: Instance) -> int:
    return NOTHING if instance.missing_reports else instance.closed_through


class TopicView:
    """What holds for every window of a topic."""

    def __init__(
        self,
        options: AuditOptions,
        progress: Progress,
        topic: str,
        *,
        announced: bool,
        instances: Sequence[Instance],
        gaps: Sequence[Gap],
        loads: LoadFacts,
    ) -> None:
        self.topic, self._options, self._progress = topic, options, progress
        self.owner = options.owner_of(topic)
        self.announced, self.instances, self.gaps, self.loads = announced, instances, gaps, loads
        tiers = (*options.origins, OFFLINE)
        self._is_counted = any(progress.began(tier, topic) is not None for tier in tiers)
        self.now = options.clock_ms()
        self.heartbeats = {
            tier: min(time, self.now) for tier, time in progress.heartbeats.items() if time != NOTHING
        }
        self._heard = {
            o: min(self.heartbeats.get(o, NOTHING), progress.heard_times.get(o, NOTHING))
            for o in options.origins
        }
        self._awaited = _Silent([one for one in instances if one.accepted is None])
        self._accepted = _Silent([one for one in instances if one.accepted is not None])
        self._worst = [*accumulate(map(self._patience, self._awaited.instances), lambda *two: overall(two))]
        heard = [time - options.grace_ms for time in self._heard.values()]
        self.final_through = max(min((*heard, *self._awaited.closed[:1]), default=FOR_EVER), NOTHING)
        """Time (ms) up to which every window is final."""

    def around(self, window: int, positions: Mapping[str, Mapping[str, int]] | None) -> Circumstances:
        """Of one window; `positions` as its row has them, None when it has no events."""
        end = window + WINDOW_MS
        over = end + self._options.grace_ms
        around = Circumstances(waiting=self._unheard_of(over))
        named, others = self._awaited.at(end)
        around.waiting += [(self._patience(one), self._silence_of(one, end)) for one in named]
        if others:
            worst = self._worst[len(named) + others - 1]
            around.waiting.append((worst, f"{others} more instances may have something to say"))
        named, others = self._accepted.at(end)
        around.notes += [f"{silent_about(one, end)}; accepted: {one.accepted}" for one in named]
        if others:
            around.notes.append(f"{others} more silent instances are accepted")
        # What a tier holds matters for events that are known of.
        gaps = [gap for gap in self.gaps if window < gap.until and (positions or gap.is_of_all)]
        early = [gap for gap in gaps if gap.since < over]
        around.waiting += [(Verdict.UNKNOWN, gap.reason) for gap in early]
        around.doubted |= {gap.tier for gap in early if gap.tier is not None}
        if not self._is_counted and not (positions or {}).get("origins"):
            around.waiting.append((Verdict.UNKNOWN, self._uncounted_topic()))
        if not self.announced and not positions:
            nobody = f"no audited producer has announced itself for topic {self.topic}"
            around.waiting.append((Verdict.CARRIED, f"{nobody}: nobody says how many events there should be"))
        if positions:
            stuck = {gap.tier for gap in early if gap.until == FOR_EVER}
            self._follow(positions, over, stuck, around)
        around.waiting += self._verified(window)
        is_published = bool(positions and TABLE in positions.get("counted", {}))
        around.waiting += self.loads.reasons(window, self.now, is_published=is_published)
        around.is_unkeyed_known = window >= self.loads.unkeyed_from
        # Late events lie where they were looked for, however long their time is over.
        self._note_late([gap for gap in gaps if gap.since >= over], around)
        return around

    def _note_late(self, gaps: Sequence[Gap], around: Circumstances) -> None:
        """Note the gaps behind a window's time: events of it that came late may be in them."""
        for gap in gaps:
            if gap.tier is None:
                beat = around.reached.get(gap.origin)
                if beat is not None and gap.since <= beat.time <= gap.until:
                    around.deaf[gap.origin] = gap.reason
            else:
                around.lost[gap.tier] = gap.reason
                reached = around.reached.get(gap.tier)
                if gap.tier == WAREHOUSE or (reached is not None and gap.serial <= reached.serial):
                    around.lacks[gap.tier] = gap.reason

    def _uncounted_topic(self) -> str:
        origins = ", ".join(self._options.origins)
        return (
            f"no audit reader of {origins} counts topic {self.topic}: is the topic there, and among the"
            " --topics of `millrace audit-reader`?"
        )

    def _verified(self, window: int) -> Iterator[tuple[Verdict, str]]:
        for problem in self._progress.verified[self.topic]:
            text = f"`millrace verify` found: {problem.text}"
            if problem.hour is None:
                yield Verdict.UNKNOWN, text
            elif problem.hour <= window < problem.hour + HOUR_MS:
                yield Verdict.INCOMPLETE, text

    def holding(self) -> str | None:
        """Why nothing is final behind `final_through`."""
        end = min(self.final_through, FOR_EVER - WINDOW_MS) + WINDOW_MS
        reasons = [text for _, text in self._unheard_of(end + self._options.grace_ms)]
        reasons += [text for text in (silent_about(one, end) for one in self._awaited.at(end)[0]) if text]
        return reasons[0] if reasons else None

    def _unheard_of(self, over: int) -> list[tuple[Verdict, str]]:
        """Origins that are not counted that far, or whose producers' word by then is not applied yet."""
        unheard = [self._behind(o) for o in self._options.origins if self.heartbeats.get(o, NOTHING) < over]
        for origin, time in self._heard.items():
            heartbeat = self.heartbeats.get(origin, NOTHING)
            if not time < over <= heartbeat:
                continue
            verdict, text = Verdict.PENDING, f"what producers of {origin} have said by then is still read"
            since = time if time != NOTHING else self._progress.beats[origin][0].time
            if heartbeat - since > STANDS_MS:
                verdict = Verdict.UNKNOWN
                text = (
                    f"what producers of {origin} have said since {iso(since)} is not read: is topic `audit`"
                    f" mirrored from {origin}, and does the auditor go on?"
                )
            unheard.append((verdict, text))
        return unheard

    def _behind(self, tier: str) -> tuple[Verdict, str]:
        """A tier that is not counted far enough, and whether it still moves."""
        heartbeat = self.heartbeats.get(tier)
        command = f"`millrace audit-reader --cluster {tier}`"
        if tier == OFFLINE:
            command = "`millrace audit-reader --tier offline`"
        if heartbeat is None:
            return Verdict.UNKNOWN, f"{tier} has sent no heartbeat: is {command} running?"
        if self.now - heartbeat > STANDS_MS:
            return Verdict.UNKNOWN, f"the reader of {tier} stands at {iso(heartbeat)}: look at {command}"
        return Verdict.PENDING, f"{tier} is counted through {iso(heartbeat)} and goes on"

    def _patience(self, instance: Instance) -> Verdict:
        """What the windows are that a silent instance has not closed."""
        since = self.heartbeats.get(instance.cluster, NOTHING) - instance.heard_at
        # Who names a time that is still to come would be awaited until then.
        is_slow = -self._options.grace_ms <= since <= self._options.hello_patience_ms
        return Verdict.PENDING if is_slow and not instance.missing_reports else Verdict.UNKNOWN

    def _silence_of(self, instance: Instance, end: int) -> str:
        silent = silent_about(instance, end)
        if instance.missing_reports or self._patience(instance) == Verdict.PENDING:
            return f"{silent}"
        return f"{silent}; nothing was heard of it since {iso(instance.heard_at)}"

    def _follow(
        self,
        positions: Mapping[str, Mapping[str, int]],
        over: int,
        stuck: set[str | None],
        around: Circumstances,
    ) -> None:
        """Find out how far every tier is with a window's events, and what is awaited."""
        progress, topic = self._progress, self.topic
        origins = sorted(positions.get("origins", ()))
        reported, counted = positions.get("reported", {}), positions.get("counted", {})
        needed: dict[str, Ends] = {}
        for origin in origins:
            at, serial = reported.get(origin, NOTHING), counted.get(origin, NOTHING)
            beat = progress.beats[origin].first(over, at, serial) if self.now >= over else None
            if beat is None:
                around.waiting += self._uncounted(origin, over)
                continue
            began = progress.began(origin, topic)
            if began is None or (beat := progress.beats[origin].first(over, at, max(serial, began))) is None:
                text = f"the reader of {origin} has not counted topic {topic} so far"
                around.waiting.append((Verdict.UNKNOWN, f"{text}: is it there, and among its --topics?"))
                continue
            around.past.add((origin, origin))
            around.reached[origin] = beat
            if not progress.has_heard(origin, beat):
                around.unheard.add(origin)
            needed[origin] = ends = progress.marked(origin, topic, beat)
            if origin == OFFLINE:
                continue
            if not progress.is_mirrored(topic, origin, ends):
                around.waiting.append(self._on_its_way(origin, beat))
                continue
            if origin not in stuck:  # beyond what its reader cannot read nobody knows what should be there
                around.past.add((origin, OFFLINE))
            if progress.is_ahead(topic, origin, counted.get(OFFLINE, NOTHING)):
                around.ahead.add((origin, OFFLINE))
            else:
                around.waiting.append(self._behind(origin))
        if all((origin, OFFLINE) in around.past for origin in origins):
            self._follow_load(needed, counted.get(OFFLINE, NOTHING), around)
        if counted.get(TABLE, NOTHING) > counted.get(WAREHOUSE, NOTHING):
            is_published = {(origin, TABLE) for origin in (*origins, "")}
            around.past |= is_published
            around.ahead |= is_published

    def _uncounted(self, origin: str, over: int) -> list[tuple[Verdict, str]]:
        """Why an origin is not past what is known of a window, but for what holds every window."""
        if origin not in self._options.origins and origin != OFFLINE:
            named = ", ".join(self._options.origins)
            text = f"events come from {origin}, which is none of {named}: mend the auditor's --origins"
            return [(Verdict.UNKNOWN, text)]
        verdict, text = self._behind(origin)
        if self.heartbeats.get(origin, NOTHING) < over:
            return [] if origin in self._options.origins else [(verdict, text)]
        return [(verdict, f"{text}; what was said last is not counted yet")]

    def _on_its_way(self, origin: str, beat: Beat) -> tuple[Verdict, str]:
        stuck = [gap for gap in self.gaps if gap.tier == OFFLINE and gap.until == FOR_EVER]
        if stuck:
            return Verdict.UNKNOWN, stuck[0].reason
        if not self._progress.holds_mirror(self.topic, origin):
            return Verdict.PENDING, (
                f"the aggregate cluster holds nothing of topic {self.topic} from {origin}: is it among the"
                f" `topics` of [mirror.{origin}]? See `millrace mirror status`"
            )
        verdict, text = self._behind(OFFLINE)
        return verdict, f"on its way from {origin} to offline since {iso(beat.time)} ({text})"

    def _follow_load(self, needed: Mapping[str, Ends], serial: int, around: Circumstances) -> None:
        progress, topic = self._progress, self.topic
        mirrored = {origin: ends for origin, ends in needed.items() if origin != OFFLINE}
        found = progress.first_mirrored(topic, mirrored, serial)
        if found is None:
            around.waiting.append(self._behind(OFFLINE))
            return
        beat, ends = found
        around.reached[OFFLINE] = max(beat, around.reached.get(OFFLINE, beat))
        if not progress.is_loaded(topic, {**ends, **needed.get(OFFLINE, {})}):
            how = f"`millrace load {topic}` loads it, `millrace audit-warehouse` counts what is loaded"
            text = f"in the aggregate cluster since {iso(beat.time)}, not loaded yet: {how}"
            around.waiting.append((Verdict.PENDING, text))
            return
        around.past.update((origin, WAREHOUSE) for origin in (*needed, ""))
        if progress.is_ahead_of_loads(topic):
            around.ahead.update((origin, WAREHOUSE) for origin in (*needed, ""))
        else:
            around.waiting.append(self._behind(OFFLINE))


def views(
    session: Session, options: AuditOptions, progress: Progress, topics: Sequence[str]
) -> Iterator[TopicView]:
    """What holds for each of the topics; read for many of them at once."""
    link = store.ProducerTopicRow
    named = join(link, ProducerRow, ProducerRow.producer == link.producer)
    for some in store.slices(topics):
        instances: defaultdict[str, list[Instance]] = defaultdict(list)
        rows = select(link.topic, ProducerRow).select_from(named).where(link.topic.in_(some))
        open_ones = rows.where(~ProducerRow.done).order_by(ProducerRow.instance, ProducerRow.origin)
        for topic, row in session.execute(open_ones):
            heartbeat = progress.heartbeats.get(row.origin, NOTHING)
            instances[topic].append(to_instance(row, heartbeat, options))
        own = select(link.topic).distinct().select_from(named)
        announced = {*session.scalars(own.where(link.topic.in_(some), ~ProducerRow.disowned))}
        gaps = gaps_of(session, progress, some)
        rows_told = select(TopicRow.topic, TopicRow.unkeyed_from).where(TopicRow.topic.in_(some))
        loads = load_facts(session, some, {row[0]: row[1] for row in session.execute(rows_told)})
        for topic in some:
            yield TopicView(
                options,
                progress,
                topic,
                announced=topic in announced,
                instances=instances[topic],
                gaps=gaps[topic],
                loads=loads[topic],
            )


def is_listed(topic: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """True for a topic that a reader or a load names, and for the first few others."""
    counted = select(CoverageRow.topic)
    others = select(TopicRow.topic).where(TopicRow.topic.not_in(counted))
    return or_(topic.in_(counted), topic.in_(others.order_by(TopicRow.topic).limit(MOST_UNCOUNTED)))


def listed(session: Session) -> Sequence[str]:
    """The topics that are judged and shown, by name."""
    return session.scalars(
        select(TopicRow.topic).where(is_listed(TopicRow.topic)).order_by(TopicRow.topic)
    ).all()


def to_instance(
    row: ProducerRow, heartbeat: int, options: AuditOptions, *, is_of_topic: bool = True
) -> Instance:
    """What is known of a producer; to a topic that it has not announced it has announced nothing."""
    nothing_heard = row.announced and not row.counted and row.next_report == 0 and not row.missing
    return Instance(
        instance=row.instance,
        server=row.server,
        service=row.service,
        cluster=row.origin,
        announced=row.announced and is_of_topic and not row.disowned,
        heard_at=row.heard_at,
        closed_through=row.closed_through,
        missing_reports=row.missing,
        first_report=row.first_report,
        idle=nothing_heard
        and row.awaited_from != NOTHING
        and heartbeat - row.awaited_from >= options.hello_patience_ms,
        accepted=row.accepted,
    )
