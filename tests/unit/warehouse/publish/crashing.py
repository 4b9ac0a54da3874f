"""A process that ends itself in the middle of a publication, and one that publishes again; for a test.

`python -m tests.unit.warehouse.publish.crashing FOLDER`: for every step there are two children. The first
calls os._exit at the step, which nothing can catch, as with SIGKILL. The second publishes, and writes down
what is then there. Forked before anything is opened, because imports take longer than all the rest.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from millrace_warehouse.history.layout import Folder, ledger_path
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from tests.loaded import load, offsets, read_again
from tests.support import child
from tests.unit.warehouse.publish.publishing import H10, H11, TOPIC, hours_of, publish_in, table_of

FIRST = (
    "table read",
    "loads read",
    "hours judged",
    "table made",
    "publication written",
    "committed",
    "recorded",
)
LATER = tuple(step for step in FIRST if step != "table made")
RELOAD = (*LATER, "rows of earlier editions taken out", "table of hours written")
REBUILD = ("publication read", "files found", "publication written", "table made again")
SCENES = {"first": FIRST, "later": LATER, "reload": RELOAD, "rebuild": REBUILD}


def crash(warehouse: Path, scene: str, step: str) -> None:
    storage = open_storage(str(warehouse))
    load(storage, TOPIC, {H10: 3, H11: 2})

    def die(reached: str) -> None:
        if reached.startswith(step):
            os._exit(9)

    with connect(storage) as catalog:
        if scene != "first":
            publish_in(storage, catalog, H10)
            load(storage, TOPIC, {H10: 2, H11: 2})
        if scene in ("reload", "rebuild"):
            publish_in(storage, catalog, H11)
            read_again(storage, TOPIC, 1, {H11: 5})
        publish_in(storage, catalog, H10, H11, progress=die, rebuild=scene == "rebuild")


def again(warehouse: Path) -> None:
    storage = open_storage(str(warehouse))
    with connect(storage) as catalog:
        publish_in(storage, catalog, H10, H11)
        second = publish_in(storage, catalog, H10, H11)
        seen = {
            "offsets": list(offsets(table_of(catalog))),
            "hours": hours_of(catalog),
            "publication": int(table_of(catalog).properties["millrace.publication"]),
            "recorded": storage.names(ledger_path(Folder.PUBLICATIONS.path(TOPIC))),
            "again": second.published,
        }
    (warehouse / "seen.json").write_text(json.dumps(seen))


def main(folder: Path) -> None:
    codes = {}
    for scene, steps in SCENES.items():
        for step in steps:
            warehouse = folder / f"{scene}, {step}"
            warehouse.mkdir()
            codes[warehouse.name] = [
                child(lambda w=warehouse, c=scene, s=step: crash(w, c, s)),  # type: ignore[misc]
                child(lambda w=warehouse: again(w)),  # type: ignore[misc]
            ]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
