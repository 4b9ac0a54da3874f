"""Outcomes of the events that one producer instance sent: pending, acknowledged or failed, as ranges.

Pure bookkeeping; the producer reports when an event was handed over, when a failure came back and when
nothing was outstanding. The common case, an event in the window of the event before, is the producer's own:
it adds one to `next_sequence` and the message's fingerprint to the run's.

An event is *pending* from the hand-over until its outcome is certain. A success is not reported. So the
outcome of all events sent before some moment is certain when nothing was outstanding at that moment, or when
the longest time that a delivery may take has passed since.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.messages import FOR_EVER
from millrace_audit.reports.outcome import Outcome, Unreported, still_open
from millrace_audit.reports.ranges import SequenceRanges


@dataclass(slots=True)
class _Sent:
    """Sequences of one topic and window, and the sum of their messages' fingerprints."""

    ranges: SequenceRanges = field(default_factory=SequenceRanges)
    fingerprint: int = 0


_Key = tuple[str, int]
_Windows = defaultdict[_Key, _Sent]


@dataclass(slots=True)
class TopicOutcomes:
    """One topic's next sequence, and the current run of events in one window."""

    topic: str
    next_sequence: int = 0
    run_from: int = 0
    """Events of [run_from, run_until) belong to the run; without a run there are no such times."""
    run_until: int = 0
    run_first: int = 0
    run_fingerprint: int = 0
    acknowledged: SequenceRanges = field(default_factory=SequenceRanges)
    """Sequences since the producer started, of all windows."""
    failed: SequenceRanges = field(default_factory=SequenceRanges)


class Outcomes:
    """All topics of one instance. Not thread-safe: the producer holds its lock."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicOutcomes] = {}
        self._sent: _Windows = defaultdict(_Sent)
        self._epochs: list[tuple[float, _Windows]] = []
        self._news: defaultdict[_Key, Outcome] = defaultdict(Outcome)
        self.open: set[_Key] = set()
        """Windows with events that were handed over, until a report closes them."""
        self._in_doubt: defaultdict[_Key, list[tuple[int, int]]] = defaultdict(list)
        """Failed sequences and fingerprints, which the epoch in which they were sent still counts as sent."""

    def topic(self, topic: str) -> TopicOutcomes:
        return self.topics.setdefault(topic, TopicOutcomes(topic))

    def begin_run(self, state: TopicOutcomes, time_ms: int, most_ms: int) -> None:
        """Begin the run of the window of `time_ms`: the topic's next events, of times up to `most_ms`."""
        self._end_run(state)
        state.run_from = window_start(time_ms)
        state.run_until = min(state.run_from + WINDOW_MS, most_ms + 1)
        state.run_first = state.next_sequence
        self.open.add((state.topic, state.run_from))

    def _end_run(self, state: TopicOutcomes) -> None:
        if state.next_sequence > state.run_first and state.run_until:
            sent = self._sent[state.topic, state.run_from]
            sent.ranges.add(state.run_first, state.next_sequence - 1)
            sent.fingerprint += state.run_fingerprint
        state.run_from = state.run_until = state.run_fingerprint = 0

    def fail(self, topic: str, time_ms: int, sequence: int, fingerprint: int) -> None:
        """Note, once, that the event's delivery failed: it may be in the log or not."""
        key, state = (topic, window_start(time_ms)), self.topic(topic)
        if sequence in state.failed:
            return
        self._news[key].add(sequence, fingerprint, failed=True)
        state.failed.add(sequence, sequence)
        if sequence in state.acknowledged:  # that was reported, or will be: take it back
            self._news[key].fingerprint -= fingerprint
        else:
            self._in_doubt[key].append((sequence, fingerprint))

    def cut(self, now: float) -> None:
        """Put everything sent so far into an epoch that was sent before `now`."""
        for state in self.topics.values():
            self._end_run(state)
        if self._sent:
            self._epochs.append((now, self._sent))
            self._sent = defaultdict(_Sent)

    def resolve(self, sent_before: float) -> None:
        """Settle the epochs cut at `sent_before` or earlier: events without a failure are acknowledged."""
        while self._epochs and self._epochs[0][0] <= sent_before:
            _, windows = self._epochs.pop(0)
            for key, sent in windows.items():
                state, outcome = self.topics[key[0]], self._news[key]
                outcome.fingerprint += sent.fingerprint
                for sequence, fingerprint in self._in_doubt.pop(key, ()):
                    if sequence in sent.ranges:
                        outcome.fingerprint -= fingerprint
                    else:
                        self._in_doubt[key].append((sequence, fingerprint))
                for first, last in sent.ranges - state.failed:
                    outcome.acknowledged.add(first, last)
                    state.acknowledged.add(first, last)

    @property
    def open_from(self) -> int:
        """Start (ms) of the earliest window with a pending event; FOR_EVER when there is none."""
        starts = [state.run_from for state in self.topics.values() if state.run_until]
        for windows in (self._sent, *(windows for _, windows in self._epochs)):
            starts += [window for _, window in windows]
        return min(starts, default=FOR_EVER)

    def take_news(self) -> Unreported:
        """Return the outcomes that became certain since the last call."""
        news, self._news = self._news, defaultdict(Outcome)
        self.open.update(news)
        return {key: outcome for key, outcome in news.items() if outcome.is_news}

    def close(self, closed_through: int) -> None:
        """Note that a report closes the windows before that time."""
        self.open = still_open(self.open, closed_through)
