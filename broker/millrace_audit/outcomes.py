"""What became of the events one producer instance sent: pending, acknowledged or failed, as ranges.

Pure bookkeeping; the producer says when an event was handed over, when a failure came back and when nothing
was outstanding. Cheap for the common case: an event in the same window as the one before costs a comparison.

An event is *pending* from the hand-over until its outcome is certain. There is no word for a success, so the
outcome of everything sent before some moment is certain when nothing was outstanding at that moment, or when
the longest time a delivery may take has passed since.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from millrace_audit.reports.counts import window_start
from millrace_audit.reports.messages import FOR_EVER, ReportedWindow
from millrace_audit.reports.ranges import SequenceRanges

_Windows = defaultdict[tuple[str, int], SequenceRanges]


@dataclass(slots=True)
class TopicOutcomes:
    """One topic's sequence, and the run of events in one window that is being sent just now."""

    topic: str
    next_sequence: int = 0
    run_window: int | None = None
    run_first: int = 0
    acknowledged: SequenceRanges = field(default_factory=SequenceRanges)
    """Since the producer started, all windows together."""
    failed: SequenceRanges = field(default_factory=SequenceRanges)


class Outcomes:
    """All topics of one instance. Not thread-safe: the producer holds its lock."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicOutcomes] = {}
        self._sent: _Windows = defaultdict(SequenceRanges)
        self._epochs: list[tuple[float, _Windows]] = []
        self._acknowledged: _Windows = defaultdict(SequenceRanges)
        self._failed: _Windows = defaultdict(SequenceRanges)

    def topic(self, topic: str) -> TopicOutcomes:
        return self.topics.setdefault(topic, TopicOutcomes(topic))

    def sent(self, state: TopicOutcomes, time_ms: int) -> None:
        """The event with the topic's next sequence was handed over."""
        window = window_start(time_ms)
        if window != state.run_window:
            self._end_run(state)
            state.run_window, state.run_first = window, state.next_sequence
        state.next_sequence += 1

    def _end_run(self, state: TopicOutcomes) -> None:
        if state.run_window is not None:
            self._sent[state.topic, state.run_window].add(state.run_first, state.next_sequence - 1)
            state.run_window = None

    def fail(self, topic: str, time_ms: int, sequence: int) -> None:
        """The event's delivery failed: it may be in the log or not."""
        self._failed[topic, window_start(time_ms)].add(sequence, sequence)
        self.topic(topic).failed.add(sequence, sequence)

    def cut(self, now: float) -> None:
        """Everything sent so far was sent before `now`."""
        for state in self.topics.values():
            self._end_run(state)
        if self._sent:
            self._epochs.append((now, self._sent))
            self._sent = defaultdict(SequenceRanges)

    def resolve(self, sent_before: float) -> None:
        """What was cut off at or before that time has its outcome: what did not fail is acknowledged."""
        while self._epochs and self._epochs[0][0] <= sent_before:
            _, windows = self._epochs.pop(0)
            for key, sent in windows.items():
                state = self.topics[key[0]]
                for first, last in sent - state.failed:
                    self._acknowledged[key].add(first, last)
                    state.acknowledged.add(first, last)

    @property
    def open_from(self) -> int:
        """Start (ms) of the earliest window with a pending event; FOR_EVER when there is none."""
        starts = [state.run_window for state in self.topics.values() if state.run_window is not None]
        for windows in (self._sent, *(windows for _, windows in self._epochs)):
            starts += [window for _, window in windows]
        return min(starts, default=FOR_EVER)

    def take_news(self, most_ranges: int) -> list[list[ReportedWindow]]:
        """All that was learnt since the last call, in portions of about `most_ranges` ranges; [] for none."""
        portions: list[list[ReportedWindow]] = []
        room = 0
        for key in sorted({*self._acknowledged, *self._failed}):
            failed = list(self._failed.get(key, ()))
            acknowledged = list(self._acknowledged.get(key, ()))
            while failed or acknowledged:
                if room <= 0:
                    portions.append([])
                    room = most_ranges
                part = ReportedWindow(
                    *key, SequenceRanges(acknowledged[:room]), SequenceRanges(failed[:room])
                )
                del acknowledged[:room], failed[:room]
                portions[-1].append(part)
                room -= part.acknowledged.range_count + part.failed.range_count + 1
        self._acknowledged.clear()
        self._failed.clear()
        return portions
