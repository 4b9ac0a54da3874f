"""The faults, as data: where each is planted and how, and what the auditor must say of it.

A row is planted on a stage of its own (`stage`). Those that no audit of this kind can find are rows as well,
with the reason: docs/audit.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE
from tests.faultaudit.batches import EDITS
from tests.faultaudit.stage import Says, Stage

Plant = Callable[[Stage], None]
HOME = "dc1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault."""

    name: str
    """Of its topic, too."""
    what: str
    plant: Plant
    """Does it all: traffic, the fault, and whatever makes the auditor's verdict final."""
    says: Says
    mirror: str = ""
    """The edit of `batches` that the mirror makes with the topic."""
    unseen: str = ""
    """Why nothing finds it: `says` is then what is said of a topic where nothing is wrong."""


def rows() -> list[Row]:
    """Every row; the ones behind what disturbs all topics come last."""
    return [*_carriers()]


# One of the carriers drops, repeats, alters or swaps messages.

_ALL = "0-39"
_KINDS: dict[str, tuple[tuple[str, str], ...]] = {
    "drop": (("missing", "10-19"),),
    "repeat": (("duplicate", "10-19"),),
    "drop_and_repeat": (("missing", "10-19"), ("duplicate", "20-29")),
    "swap": (("altered", _ALL),),
    "alter": (("altered", _ALL),),
    "reorder": (),
}
_ORDER = (
    "the audit compares sets: the order within a partition is kept by broker and mirror, and nobody tells it"
)
_CONTENT = "a load says sequences and no fingerprints, so the warehouse's content is not compared"


def _carriers() -> Iterator[Row]:
    for hop, tier, plant in (
        ("log", HOME, _in_the_log),
        ("mirror", OFFLINE, _in_the_mirror),
        ("load", WAREHOUSE, _in_the_load),
    ):
        for fault, edit in EDITS.items():
            unseen = (
                _ORDER if fault == "reorder" else _CONTENT if tier == WAREHOUSE and _is_content(fault) else ""
            )
            findings = tuple((kind, tier, sequences) for kind, sequences in _KINDS[fault])
            said = (edit.__doc__ or "").rstrip(".")
            yield Row(
                name=f"{hop}-{fault.replace('_', '-')}",
                what=f"{hop}: {said[0].lower()}{said[1:]}",
                plant=plant(fault),
                mirror=fault if hop == "mirror" else "",
                says=Says(verdict=Verdict.COMPLETE) if unseen else Says(findings=findings),
                unseen=unseen,
            )


def _is_content(fault: str) -> bool:
    return fault in ("swap", "alter")


def _in_the_log(fault: str) -> Plant:
    """Acknowledged, then changed on the disk before anybody has read it."""

    def plant(stage: Stage) -> None:
        with stage.held(), stage.without(f"{HOME}-reader"):
            stage.traffic()
            stage.edit_log(HOME, EDITS[fault])
        stage.load()

    return plant


def _in_the_mirror(_: str) -> Plant:
    def plant(stage: Stage) -> None:
        with stage.held():
            stage.begin()
        stage.await_copied()
        stage.end()  # the mirror's position is visible with the next append only
        stage.load()

    return plant


def _in_the_load(fault: str) -> Plant:
    def plant(stage: Stage) -> None:
        with stage.held():
            stage.traffic()
        stage.load(fault)

    return plant
