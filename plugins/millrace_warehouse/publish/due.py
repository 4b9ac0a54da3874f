"""Chooses the hours that a run publishes, with the auditor's verdicts on them.

    named by an option             published whatever the verdict, also without rows
    waits, complete                published with `proven`
    waits, unknown or carried      published when the hour ended `unproven_after_s` ago
    waits, incomplete              published only if named
    published, gets rows           asked again: late rows may be part of more that is on its way
    published, not complete        asked again with `proven`, the newest RECHECKED hours
    published, judged otherwise    asked again with `proven`, also if complete: the auditor names these hours
    empty, after complete hours    asked with `proven`: an hour without a row is complete, too

Asks the auditor through a function, and changes nothing but the state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from millrace_audit.answer import Changes
from millrace_warehouse.history.hours import FIRST_HOUR, UNFILED, hour_of, number_of, partition_of, start_of
from millrace_warehouse.history.manifest import UNASKED, HourVerdict
from millrace_warehouse.publish.gate import MOST_HOURS
from millrace_warehouse.publish.state import COMPLETE, PENDING, TableState

Ask = Callable[[Iterable[str]], Mapping[str, HourVerdict]]
"""Function that asks the auditor about hours. Returns hour -> verdict, in the order of the hours."""
RECHECKED = 7 * 24
"""Most published hours without a proof about which one run asks the auditor again."""
EMPTY = 10_000
"""Number of hours after the complete hours in which one run looks for empty hours."""


def choose(
    state: TableState,
    ask: Ask,
    changes: Callable[[str | None], Changes],
    named: Sequence[str],
    proven: bool,
    unproven_after_s: float | None,
    now_s: float,
) -> None:
    """Add every hour that is due to the state's next publication.

    `changes` asks the auditor which final verdicts have changed since a cursor.
    """
    cursor = state.judged_through
    changed = _rejudged(state, changes) if proven else []  # first: each verdict below is at least as new
    for hour, verdict in ask(named).items():
        if state.is_published(hour):
            _judge_again(state, hour, verdict)
        else:
            state.publish(hour, verdict)
    if proven or unproven_after_s is not None:
        for hour, verdict in ask(sorted(state.unpublished)).items():
            if _is_due(hour, verdict, proven, unproven_after_s, now_s):
                state.publish(hour, verdict)
    if proven:
        again = {*map(hour_of, heapq.nlargest(RECHECKED, state.incomplete)), *changed}
        verdicts = ask(sorted(filter(state.is_published, again)))
        for hour, verdict in verdicts.items():
            _judge_again(state, hour, verdict)
        if any(verdicts[hour].verdict == PENDING for hour in verdicts.keys() & changed):
            state.judged_through = cursor  # the next run asks about these hours again
        _fill(state, ask)


def _rejudged(state: TableState, changes: Callable[[str | None], Changes]) -> list[str]:
    """Return the hours whose final verdict has changed since the state's cursor, and move the cursor.

    Without a cursor, return the newest RECHECKED published hours of all hours that were ever judged.
    """
    newest = None if state.judged_through else {*heapq.nlargest(RECHECKED, state.published)}
    hours: list[str] = []
    while len(hours) < RECHECKED:
        changed = changes(state.judged_through)
        state.judged_through = changed.cursor
        numbers = [int(start.timestamp()) // 3600 for start in changed.hours]
        hours += [hour_of(number) for number in numbers if newest is None or number in newest]
        if not changed.more:
            break
    return hours


def judge_late(state: TableState, ask: Ask) -> bool:
    """Ask about the published hours whose rows change. Return True if one of them had no verdict yet."""
    late = [hour for hour, change in state.changes.items() if change.verdict is None]
    for hour, verdict in ask(late).items():
        state.changes[hour].verdict = verdict
    return bool(late)


def _is_due(
    hour: str, verdict: HourVerdict, proven: bool, unproven_after_s: float | None, now_s: float
) -> bool:
    if verdict.verdict == COMPLETE:
        return proven
    if verdict.verdict not in ("unknown", "carried") or unproven_after_s is None:
        return False
    return hour == UNFILED or start_of(hour).timestamp() + 3600 + unproven_after_s <= now_s


def _judge_again(state: TableState, hour: str, verdict: HourVerdict) -> None:
    """Apply a new verdict on a published hour, if it makes the hour complete or withdraws that.

    A complete hour whose late rows are still on their way stays complete: these rows are judged when they
    come. A new verdict replaces the one that an hour keeps when an erasure takes rows out.
    """
    if verdict.verdict in (UNASKED, PENDING):
        return
    if (verdict.verdict == COMPLETE) != state.is_complete(partition_of(hour)):
        state.judge(hour, verdict)


def _fill(state: TableState, ask: Ask) -> None:
    """Publish the empty hours after the complete hours, up to the newest hour that has rows."""
    filed = [number_of(hour) for hour in (*state.unpublished, *state.changes) if hour != UNFILED]
    last = max([*state.published, *filed], default=0)
    number = state.complete_until
    if number is None:
        sound = (number for number in filed if number >= FIRST_HOUR)
        number = min((number for number in sound if _will_be_complete(state, number)), default=last)
    verdicts: Mapping[str, HourVerdict] = {}
    for at in range(number, min(number + EMPTY, last)):
        # Complete as the next publication leaves it: what is chosen now closes gaps, too.
        if _will_be_complete(state, at):
            continue
        if not _is_empty(state, at):
            return
        if (hour := hour_of(at)) not in verdicts:
            near = range(at, min(at - at % MOST_HOURS + MOST_HOURS, last))
            verdicts = ask(hour_of(each) for each in near if _is_empty(state, each))
        if verdicts[hour].verdict != COMPLETE:
            return
        state.publish(hour, verdicts[hour])


def _is_empty(state: TableState, number: int) -> bool:
    hour = hour_of(number)
    return not (state.is_published(hour) or hour in state.changes or hour in state.unpublished)


def _will_be_complete(state: TableState, number: int) -> bool:
    change = state.changes.get(hour_of(number))
    if change is not None and change.verdict is not None:
        return change.verdict.verdict == COMPLETE
    return state.is_complete(number)
