"""Choice of the hours that a run publishes, with the auditor's verdicts on them.

    named                          published whatever the verdict, empty ones, too
    waits, complete                published with `proven`
    waits, unknown or carried      published when the hour ended `unproven_after_s` ago
    waits, incomplete              never, unless named
    published, gets rows           asked again: late rows may belong to more that is on its way
    published, not complete        asked again with `proven`, the newest RECHECKED
    published, judged otherwise    asked again with `proven`, complete ones too: the auditor says which
    empty, behind complete hours   asked with `proven`: an hour without a row is complete, too

Pure: asks through a function, and changes nothing but the state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from millrace_audit.answer import Changes
from millrace_warehouse.history.hours import FIRST_HOUR, UNFILED, hour_of, number_of, partition_of, start_of
from millrace_warehouse.history.manifest import UNASKED, Verdict
from millrace_warehouse.publish.state import COMPLETE, PENDING, State

Ask = Callable[[str], Verdict]
RECHECKED = 7 * 24
"""Most published hours without a proof, and most empty hours, that one run asks the auditor about."""


def choose(
    state: State,
    ask: Ask,
    named: Sequence[str],
    rejudged: Collection[str],
    proven: bool,
    unproven_after_s: float | None,
    now_s: float,
) -> None:
    """Let every hour that is due into the state's next publication.

    `rejudged`: hours of which the auditor says that their final verdict has changed.
    """
    for hour in dict.fromkeys(named):
        if not state.is_published(hour):
            state.publish(hour, ask(hour))
        elif hour not in state.changes:
            _judge_again(state, hour, ask(hour))
    if proven or unproven_after_s is not None:
        for hour in sorted(state.unpublished):
            verdict = ask(hour)
            if _is_due(hour, verdict, proven, unproven_after_s, now_s):
                state.publish(hour, verdict)
    if proven:
        again = {*map(hour_of, heapq.nlargest(RECHECKED, state.incomplete)), *rejudged}
        for hour in sorted(hour for hour in again if state.is_published(hour)):
            if hour not in state.changes:
                _judge_again(state, hour, ask(hour))
        _fill(state, ask)


def rejudged(state: State, changes: Callable[[str | None], Changes]) -> list[str]:
    """Return the hours whose final verdict has changed since the state's cursor, and move the cursor on.

    Without a cursor, of all hours that were ever judged, the newest RECHECKED published ones.
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


def judge_late(state: State, ask: Ask) -> bool:
    """Ask about the published hours whose rows change; True if there was one that had no verdict yet."""
    late = [(hour, change) for hour, change in state.changes.items() if change.verdict is None]
    for hour, change in late:
        change.verdict = ask(hour)
    return bool(late)


def _is_due(hour: str, verdict: Verdict, proven: bool, unproven_after_s: float | None, now_s: float) -> bool:
    if verdict.verdict == COMPLETE:
        return proven
    if verdict.verdict not in ("unknown", "carried") or unproven_after_s is None:
        return False
    return hour == UNFILED or start_of(hour).timestamp() + 3600 + unproven_after_s <= now_s


def _judge_again(state: State, hour: str, verdict: Verdict) -> None:
    """A new verdict on a published hour is a change when it makes the hour complete, or takes that back.

    A complete hour with more on its way stays: the late rows, when they come, are judged.
    """
    if verdict.verdict in (UNASKED, PENDING):
        return
    if (verdict.verdict == COMPLETE) != state.is_complete(partition_of(hour)):
        state.judge(hour, verdict)


def _fill(state: State, ask: Ask) -> None:
    """Publish the empty hours behind the complete ones, up to the newest hour that has rows."""
    filed = [number_of(hour) for hour in (*state.unpublished, *state.changes) if hour != UNFILED]
    last = max([*state.published, *filed], default=0)
    number = state.complete_until
    if number is None:
        sound = (number for number in filed if number >= FIRST_HOUR)
        number = min((number for number in sound if _will_be_complete(state, number)), default=last)
    for _ in range(RECHECKED):
        # Complete as the next publication leaves it: what is chosen now closes gaps, too.
        while number < last and _will_be_complete(state, number):
            number += 1
        hour = hour_of(number)
        if number >= last or state.is_published(hour) or hour in state.changes or hour in state.unpublished:
            return
        if ask(hour).verdict != COMPLETE:
            return
        state.publish(hour, ask(hour))


def _will_be_complete(state: State, number: int) -> bool:
    change = state.changes.get(hour_of(number))
    if change is not None and change.verdict is not None:
        return change.verdict.verdict == COMPLETE
    return state.is_complete(number)
