"""Faults of who carries messages: the producer's log, the mirror and the load, each with the same edits."""

from __future__ import annotations

from collections.abc import Iterator

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE
from tests.trials.faultaudit.batches import EDITS
from tests.trials.faultaudit.row import HOME, Plant, Row
from tests.trials.faultaudit.stage import Says, Stage

_ALL = "0-39"
_KINDS: dict[str, tuple[tuple[str, str], ...]] = {
    "drop": (("missing", "10-19"),),
    "repeat": (("duplicate", "10-19"),),
    "drop_and_repeat": (("missing", "10-19"), ("duplicate", "20-29")),
    "swap": (("altered", _ALL),),
    "alter": (("altered", _ALL),),
    "reorder": (),
}
_CONTENT = ("swap", "alter")
_UNORDERED = "The order within a partition"
_UNREAD = "Columns other than the audit header"


def rows() -> Iterator[Row]:
    hops = (("log", HOME, _log), ("mirror", OFFLINE, _mirror), ("load", WAREHOUSE, _load))
    for hop, tier, plant in hops:
        for fault, edit in EDITS.items():
            unseen = _UNORDERED if fault == "reorder" else ""
            if tier == WAREHOUSE and fault in _CONTENT:
                unseen = _UNREAD
            findings = [(kind, tier, sequences) for kind, sequences in _KINDS[fault]]
            yield Row(
                name=f"{hop}-{fault.replace('_', '-')}",
                what=f"{hop}: {(edit.__doc__ or '').rstrip('.')}",
                plant=plant(fault),
                mirror=fault if hop == "mirror" else "",
                says=Says(verdict=Verdict.COMPLETE) if unseen else Says(findings=findings),
                unseen=unseen,
            )
    yield _last_of_the_mirror()


def _last_of_the_mirror() -> Row:
    """Nothing comes behind the append in which it happens: its leader alone can tell how far it reaches."""
    return Row(
        name="mirror-drop-last",
        what="mirror: Messages 10 to 19 are gone from its newest append",
        plant=_last,
        mirror="drop",
        says=Says(findings=[("missing", OFFLINE, "10-19")]),
    )


def _last(stage: Stage) -> None:
    with stage.held():
        stage.traffic()
    stage.load()


def _log(fault: str) -> Plant:
    """Acknowledged, then changed on the disk before anybody has read it."""

    def plant(stage: Stage) -> None:
        with stage.held(), stage.without(f"{HOME}-reader"):
            stage.traffic()
            stage.edit_log(HOME, EDITS[fault])
        stage.load()

    return plant


def _mirror(_: str) -> Plant:
    def plant(stage: Stage) -> None:
        with stage.held():
            stage.begin()
        stage.await_copied()
        stage.end()
        stage.load()

    return plant


def _load(fault: str) -> Plant:
    def plant(stage: Stage) -> None:
        stage.traffic()
        stage.load(fault)

    return plant
