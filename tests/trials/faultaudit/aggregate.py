"""The aggregate cluster's log directory, with its audit topics, comes back from an older copy.

The mirror copies the missing messages again. No event is lost, but some counts are: the auditor cannot know
whether its earlier counts are of the same messages.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE
from tests.trials.faultaudit.batches import BATCH, NEEDED
from tests.trials.faultaudit.published import publish_proven
from tests.trials.faultaudit.row import Row
from tests.trials.faultaudit.stage import Says, Stage

_BROKER = f"{OFFLINE}-1"
_TWICE = "30 seem duplicate at offline .* sequences 10-39.*, but audit records were lost"
_CUT = "was read up to offset .* its log was cut back .* nothing was loaded"


def rows() -> Iterator[Row]:
    yield Row(
        name="aggregate-restored",
        what="the aggregate cluster's log comes back from an older copy before its messages are loaded",
        plant=_restored_before_the_load,
        says=Says(verdict=Verdict.UNKNOWN, reason=_TWICE, sentence="^no table$"),
    )
    yield Row(
        name="aggregate-restored-late",
        what="the aggregate cluster's log comes back from an older copy after its messages were loaded",
        plant=_restored_after_the_load,
        says=Says(
            verdict=Verdict.UNKNOWN,
            beside=Verdict.PENDING,
            reason=_TWICE,
            sentence=f"(?s)^no table; .*{_CUT}",
        ),
    )


def _restored_before_the_load(stage: Stage) -> None:
    _restored(stage, lambda: None)
    stage.place.load(stage.topic)
    stage.sentence = publish_proven(stage)


def _restored_after_the_load(stage: Stage) -> None:
    _restored(stage, lambda: stage.place.load(stage.topic))
    try:
        stage.place.load(stage.topic)
    except AssertionError as refused:
        stage.sentence = f"{publish_proven(stage)}; {refused}"


def _restored(stage: Stage, before: Callable[[], None]) -> None:
    """Restore the copy with the first batch after `before`. The mirror copies the later batches again."""
    place = stage.place
    directory, copy = place.clusters[OFFLINE].directory(1), place.folder / f"{stage.topic}-copy"
    stage.begin(batches=1)
    stage.await_tier(OFFLINE, BATCH)
    with stage.without(_BROKER):
        shutil.copytree(directory, copy)
    stage.go_on(1)
    stage.await_tier(OFFLINE, NEEDED * BATCH)
    before()
    with stage.without(_BROKER):
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
    assert place.elect_restored(OFFLINE, 1), "it serves logs that lack messages, and no operator decided that"
    stage.end()
    stage.await_in_copy(NEEDED + 1)
