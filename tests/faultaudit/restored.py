"""A store that comes back from an older copy: the warehouse's folder of a topic, and an agent's spool."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from millrace_audit.answer import Verdict
from tests.faultaudit.row import Row
from tests.faultaudit.stage import Says, Stage
from tests.support import run_millrace

WELL = Says(verdict=Verdict.COMPLETE)
_GONE = Says(beside=Verdict.INCOMPLETE, reason=r"load 2 was counted with \d+ rows and is gone")
_REFUSED = "(?s)was counted by the auditor and is gone: .* older copy"


def rows() -> Iterator[Row]:
    yield Row(
        name="warehouse-restored",
        what="a topic's folder in the warehouse comes back from an older copy before its publication",
        plant=_restored_before_publication,
        says=replace(_GONE, sentence="(?s)nothing to change; 0 rows.*waits: .* older copy"),
    )
    yield Row(
        name="warehouse-restored-late",
        what="a topic's folder in the warehouse comes back from an older copy after its publication",
        plant=_restored_after_publication,
        says=replace(_GONE, sentence=_REFUSED),
    )
    yield Row(
        name="warehouse-restored-whole",
        what="a topic's folder in the warehouse comes back from its newest copy",
        plant=_restored_whole,
        says=replace(WELL, sentence="complete until 2015-05-17T11"),
    )


def _loaded_twice(stage: Stage) -> Path:
    """Two loads of the window, and a copy of the folder after the first."""
    stage.begin(batches=2)
    stage.await_tier("offline", 20)
    stage.place.load(stage.topic)
    copy = _copy(stage)
    stage.go_on(2)
    stage.end()
    stage.load()
    stage.await_says(WELL)
    return copy


def _copy(stage: Stage) -> Path:
    return Path(
        shutil.copytree(stage.place.warehouse / stage.topic, stage.place.folder / f"{stage.topic}-copy")
    )


def _put_back(stage: Stage, copy: Path) -> None:
    shutil.rmtree(stage.place.warehouse / stage.topic)
    shutil.copytree(copy, stage.place.warehouse / stage.topic)


def _ask(stage: Stage, *words: str) -> str:
    done = run_millrace(*words, "--auditor", stage.place.auditor_url)
    return done.stdout + done.stderr


def _publish(stage: Stage) -> str:
    return _ask(stage, "publish", stage.topic, "--warehouse", str(stage.place.warehouse), "--proven")


def _verify(stage: Stage) -> str:
    return _ask(stage, "verify", str(stage.place.warehouse), "--topic", stage.topic)


def _restored_before_publication(stage: Stage) -> None:
    copy = _loaded_twice(stage)
    _put_back(stage, copy)
    stage.sentence = _publish(stage) + _verify(stage)


def _restored_after_publication(stage: Stage) -> None:
    copy = _loaded_twice(stage)
    assert "complete until 2015-05-17T11" in _publish(stage)
    _put_back(stage, copy)
    stage.sentence = _publish(stage) + _verify(stage)


def _restored_whole(stage: Stage) -> None:
    _loaded_twice(stage)
    shutil.rmtree(stage.place.folder / f"{stage.topic}-copy")
    _put_back(stage, _copy(stage))
    stage.sentence = _publish(stage) + _verify(stage)
