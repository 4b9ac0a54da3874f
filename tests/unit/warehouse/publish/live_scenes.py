"""Commits of branch `live`, and a process that ends itself in the middle of each; for a test.

`python -m tests.unit.warehouse.publish.live_scenes FOLDER`: for every scene and every file that its commits
write there are two children. The first calls os._exit before that file is written, which nothing can catch,
as with SIGKILL. The second writes down what a reader sees, follows, and writes down what a reader sees then.
Forked before anything is opened, because imports take longer than all the rest.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.schemas import pinned
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.catalog import load_table, table_identifier
from millrace_warehouse.publish.live import Live, Tail, switch_off
from tests.loaded import write_files
from tests.published import TOPIC, Warehouse, warehouse
from tests.support import child
from tests.unit.warehouse.publish.publishing import H9, H10, H11

ATTEMPT = "0001-0123456789abcdef"
KILLED = 9


@dataclass(frozen=True)
class Seen:
    """The offsets that a reader sees, sorted."""

    live: Sequence[int]
    main: Sequence[int]


@dataclass(frozen=True)
class Scene:
    """A warehouse in which one commit of the branch is due, and what a reader must see of it."""

    prepare: Callable[[Warehouse], object]
    act: Callable[[Warehouse], object]
    before: Seen
    after: Seen


def live(w: Warehouse) -> Live:
    return Live(Context(storage=w.storage, catalog=w.catalog), w.stored)


def tail(w: Warehouse) -> Tail:
    """Return a tail of two rows behind the newest load, in files that are there."""
    schema, newest = pinned(w.stored), layout.newest_load(w.stored)
    assert schema is not None
    assert newest is not None
    load, start = newest.load + 1, newest.ends[0]
    folder = f"rows/{load:010d}-{ATTEMPT}"
    written = write_files(w.storage, schema, folder, load, start, {H11: 2})
    entries = [data_file(file, stated, w.storage.uri(f"{TOPIC}/{file.path}")) for file, stated in written]
    ends = {0: start + 2}
    return Tail(load=load, attempt=ATTEMPT, ends=ends, schema=schema.number, entries=entries, lease_s=60.0)


def _switched_on(w: Warehouse) -> None:
    """Publish three rows of five, and switch the branch on."""
    w.load({H9: 3, H10: 2})
    w.publish(H9)
    live(w).follow(on=True)


def _one_load_behind(w: Warehouse) -> None:
    _switched_on(w)
    w.load({H10: 1, H11: 2})


def _with_a_tail(w: Warehouse) -> None:
    _switched_on(w)
    live(w).follow(tail(w))


def seen(*, live: int, main: int) -> Seen:
    """Return the first offsets, so many in each branch."""
    return Seen([*range(live)], [*range(main)])


SCENES = {
    "the first commit": Scene(
        lambda w: w.load({H9: 3, H10: 2}),
        lambda w: live(w).follow(on=True),
        seen(live=0, main=0),
        seen(live=5, main=0),
    ),
    "a load": Scene(_one_load_behind, lambda w: live(w).follow(), seen(live=5, main=3), seen(live=8, main=3)),
    "a publication": Scene(
        _switched_on, lambda w: w.publish(H10), seen(live=5, main=3), seen(live=5, main=5)
    ),
    "a tail": Scene(
        _switched_on, lambda w: live(w).follow(tail(w)), seen(live=5, main=3), seen(live=7, main=3)
    ),
    "a tail withdrawn": Scene(
        _with_a_tail, lambda w: live(w).follow(dropped=ATTEMPT), seen(live=7, main=3), seen(live=5, main=3)
    ),
    "the branch switched off": Scene(
        _with_a_tail,
        lambda w: switch_off(Context(storage=w.storage, catalog=w.catalog), w.stored),
        seen(live=7, main=3),
        seen(live=0, main=3),
    ),
}


def look(w: Warehouse) -> Seen:
    """Return what a reader sees of both branches, now."""
    table = load_table(w.catalog, table_identifier(TOPIC))
    if table is None:
        return seen(live=0, main=0)
    branches = (LIVE in table.metadata.refs and LIVE), "main"
    scans = (
        table.scan(selected_fields=("_offset",)).use_ref(branch) if branch in table.metadata.refs else None
        for branch in branches
    )
    shown = [sorted(scan.to_arrow()["_offset"].to_pylist()) if scan is not None else [] for scan in scans]
    return Seen(*shown)


def check_all_or_nothing(scene: Scene, there: Seen) -> None:
    """Check each branch for itself: a publication moves `main` before `live`."""
    assert there.live in (scene.before.live, scene.after.live)
    assert there.main in (scene.before.main, scene.after.main)


def before_each_file(act: Callable[[], object]) -> Callable[[Any], None]:
    """Return an `os.fsync` that acts before each file is on disk. A file is synced before its folder."""
    real = os.fsync

    def fsync(descriptor: Any) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            act()
        real(descriptor)

    return fsync


def _crash(folder: Path, scene: Scene, files: int) -> None:
    """Prepare the scene, and end the process when it has written so many files."""
    left = count(files, -1)

    def die() -> None:
        if next(left) == 0:
            os._exit(KILLED)

    with warehouse(folder) as w:
        scene.prepare(w)
        with mock.patch("os.fsync", before_each_file(die)):
            scene.act(w)


def _again(folder: Path, scene: Scene) -> None:
    with warehouse(folder) as w:
        found = look(w)
        scene.act(w)
        report = {"found": asdict(found), "made": asdict(look(w)), "problems": w.problems(rows=True)}
    (folder / "seen.json").write_text(json.dumps(report))


def main(folder: Path) -> None:
    for name, scene in SCENES.items():
        for files in count():
            there = folder / f"{name}, {files}"
            code = child(lambda t=there, s=scene, f=files: _crash(t, s, f))  # type: ignore[misc]
            assert code in (0, KILLED), f"{there.name} has ended with {code}"
            assert child(lambda t=there, s=scene: _again(t, s)) == 0, there.name  # type: ignore[misc]
            if code == 0:
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
