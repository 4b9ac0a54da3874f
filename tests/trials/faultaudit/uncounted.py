"""A topic that no reader counts: its messages are loaded, and its hour must wait."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from millrace_audit.answer import Verdict
from millrace_audit.reader.partition import LEFT_OUT
from millrace_audit.reports.messages import OFFLINE
from tests.support import wait_until
from tests.trials.faultaudit import forging
from tests.trials.faultaudit.batches import BATCH, NEEDED
from tests.trials.faultaudit.published import HOUR, PROVEN, WELL, mark, publish, publish_proven
from tests.trials.faultaudit.rejected import PLAIN, encoded, write_plain
from tests.trials.faultaudit.row import HOME, Row
from tests.trials.faultaudit.stage import Says, Stage

_CARRIED = Says(verdict=Verdict.CARRIED, beside=Verdict.CARRIED)


def rows() -> Iterator[Row]:
    yield Row(
        name="uncounted",
        what="no reader counts the topic until its messages are reported, copied and loaded",
        plant=_reported,
        says=Says(verdict=Verdict.COMPLETE, sentence=f"^no table; {PROVEN}$"),
        is_counted=False,
    )
    yield Row(
        name="uncounted-anew",
        what="the readers leave out, for a while, a topic that they counted before",
        plant=_left_out_anew,
        says=Says(verdict=Verdict.COMPLETE, sentence=f"^no table; {PROVEN}$"),
    )
    yield Row(
        name="uncounted-without-header",
        what="no reader counts the topic until its messages without a header are copied and loaded",
        plant=_without_header,
        says=Says(
            verdict=Verdict.CARRIED, beside=Verdict.CARRIED, sentence="^no table; carried until nothing$"
        ),
        schema=PLAIN,
        is_counted=False,
    )


def _left_out_anew(stage: Stage) -> None:
    stage.begin(batches=2)
    stage.await_tier(OFFLINE, 2 * BATCH)
    stage.place.leave_out(stage.topic)
    stage.go_on(2)
    stage.end()
    stage.await_in_copy(NEEDED + 1)
    before = _loaded_uncounted(stage, LEFT_OUT)
    stage.await_says(WELL)
    stage.sentence = f"{before}; {publish_proven(stage)}"


def _reported(stage: Stage) -> None:
    stage.traffic()
    stage.await_in_copy(NEEDED + 1)
    reason = f"the reader of {HOME} has not counted topic {stage.topic}; add it to the reader's --topics"
    before = _loaded_uncounted(stage, reason)
    stage.await_says(WELL)
    stage.sentence = f"{before}; {publish_proven(stage)}"


def _without_header(stage: Stage) -> None:
    write_plain(stage, encoded(stage, NEEDED * BATCH))
    copy = stage.place.target_of(HOME, stage.topic)
    copied = partial(forging.messages, stage.place, OFFLINE, stage.topic, copy)
    wait_until(f"{stage.topic} is copied", lambda: len(copied()) == NEEDED * BATCH + 1)
    before = _loaded_uncounted(stage, f"no audit reader counts topic {stage.topic}")
    stage.await_says(_CARRIED)
    publish(stage, "--hour", HOUR)
    stage.sentence = f"{before}; {mark(stage)}"


def _loaded_uncounted(stage: Stage, reason: str) -> str:
    """Load while the hour is unknown, then let the readers count it. Return the mark before the counting."""
    stage.place.load(stage.topic)
    stage.await_says(Says(verdict=Verdict.UNKNOWN, beside=Verdict.UNKNOWN, reason=reason))
    before = publish_proven(stage)
    stage.place.count(stage.topic)
    return before
