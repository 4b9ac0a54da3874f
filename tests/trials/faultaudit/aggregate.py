"""The aggregate cluster's log directory, with its audit topics, comes back from an older copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE
from tests.trials.faultaudit.batches import BATCH, NEEDED
from tests.trials.faultaudit.published import publish_proven
from tests.trials.faultaudit.row import Row
from tests.trials.faultaudit.stage import Says, Stage

_BROKER = f"{OFFLINE}-1"
_CUT = "was read up to offset .* its log was cut back .* nothing was loaded"


def rows() -> Iterator[Row]:
    yield Row(
        name="aggregate-restored",
        what="the aggregate cluster's log comes back from an older copy after its messages were loaded",
        plant=_restored,
        says=Says(
            verdict=Verdict.PENDING,
            beside=Verdict.PENDING,
            reason="in the aggregate cluster since .* not loaded yet|offline has not counted far enough",
            sentence=f"(?s)^no table; .*{_CUT}",
        ),
    )


def _restored(stage: Stage) -> None:
    """The copy has the first batch only; load 1 has all four."""
    place = stage.place
    directory, copy = place.clusters[OFFLINE].directory(1), place.folder / f"{stage.topic}-copy"
    stage.begin(batches=1)
    stage.await_tier(OFFLINE, BATCH)
    with stage.without(_BROKER):
        shutil.copytree(directory, copy)
    stage.go_on(1)
    stage.await_tier(OFFLINE, NEEDED * BATCH)
    place.load(stage.topic)
    with stage.without(_BROKER):
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
    assert place.elect_restored(OFFLINE, 1), "it serves logs that lack messages, and no operator said so"
    stage.end()
    stage.await_in_copy(NEEDED + 1)
    try:
        place.load(stage.topic)
    except AssertionError as refused:
        stage.sentence = f"{publish_proven(stage)}; {refused}"
