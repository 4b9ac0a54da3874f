"""Power cuts of the machine that holds the warehouse, while loads and publications are made there.

The model is that of the broker's disk: what a process has not synced is lost, kept or garbage, each for
itself, files that pyarrow wrote included, because nothing is certain but what a sync has covered. After a cut
the same jobs run again. What was there before the cut must be there after it; then nothing may be missing or
twice, and `verify` must find nothing.

The catalog is SQLite on a disk that loses nothing: it syncs by itself, unseen by this model. So a cut takes
what the warehouse had not on its disk and leaves the catalog that names it.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable

from tests.integration.faults.disk import Disk
from tests.support import Process, run_millrace
from tests.trials.faultload.place import Place
from tests.trials.faultload.produced import HOURS, START_MS, Ledger
from tests.trials.faultload.runs import ALL_HOURS, Failed
from tests.trials.faultload.watch import Problem, Sequences, Topic, published_rows
from tests.warehouses import EMPTY_EVENT, HOUR_MS

EVENTS = 60
SYNCS = 60
"""About as many as a load or a publication makes; the process ends at one of them, or gets to its end."""
CATALOG = "power"
DIED = 9
"""Exit code of a process that the disk has ended."""


class PowerCuts:
    """A warehouse of its own on a disk that loses power; one topic that grows from round to round."""

    def __init__(self, place: Place, chance: random.Random, say: Callable[[str], None]) -> None:
        self._place, self._chance, self._say = place, chance, say
        folder = place.folder / "power"
        self._root, self._books = folder / "warehouse", folder / "disk"
        self._root.mkdir(parents=True)
        self._catalog = folder / "catalog.db"
        self._disk = Disk(self._books, self._root, chance)
        self._topic = place.site.topic("PowerCut", 3)
        self._ledger = Ledger()
        self._published: Sequences = {}
        """Rows of the table at the last look."""
        self._settings = folder / "settings.json"

    @property
    def lost(self) -> str:
        """Losses by the cuts: rounds that lost nothing would show nothing."""
        return f"{self._disk.lost_bytes} bytes and {self._disk.lost_names} names"

    def round(self) -> None:
        """One cut, at some sync of a load or a publication; Problem or Failed if anything is wrong then."""
        self._produce()
        load, publication = f"load-{uuid.uuid4().hex}", f"publish-{uuid.uuid4().hex}"
        meets_load = self._chance.random() < 0.5
        point = self._chance.randint(1, SYNCS)
        if not meets_load:
            self._through("load", load)
        before = self._seen()
        job, run_id = ("load", load) if meets_load else ("publish", publication)
        died = self._try(job, run_id, point) == DIED
        if not died:
            before = self._seen()  # it has said that everything is there
        published = self._published
        self._disk.cut_power()
        self._say(f"power cut {'at' if died else 'after'} sync {point} of {job}")
        after = self._seen()
        if not before.loads.items() <= after.loads.items():
            raise Problem(f"{self._root}: a load that was made before the power cut is not as it was")
        if any(rows - self._published.get(key, set()) for key, rows in published.items()):
            raise Problem(f"{self._root}: rows that were in the table before the power cut are gone")
        self._through("load", load)
        self._through("publish", publication)
        self._compare()

    def _settings_of_the_catalog(self) -> dict[str, str]:
        prefix = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"
        return {f"{prefix}TYPE": "sql", f"{prefix}URI": f"sqlite:///{self._catalog}"}

    def _produce(self) -> None:
        with self._place.site.producer("power") as producer:
            for _ in range(EVENTS):
                self._ledger.hand_over(self._topic, producer.instance, "power")
                time_ms = START_MS + self._chance.randrange(HOURS * HOUR_MS)
                producer.send(self._topic, self._topic, EMPTY_EVENT, time_ms=time_ms)
            producer.flush()
            self._ledger.settle(producer)

    def _seen(self) -> Topic:
        """Look as a reader does; raise Problem for anything a reader should not see."""
        topic = Topic(self._root, self._topic, self._ledger)
        topic.look(self._chance)
        self._published = published_rows(self._catalog, self._topic)
        return topic

    def _try(self, job: str, run_id: str, point: int) -> int:
        """Exit code of one try; with `point` it ends instead of that sync."""
        settings = {"warehouse": str(self._root), "run_id": run_id}
        if job == "load":
            settings |= {"topics": [self._topic], "cut_bytes": 2_000, **self._place.sources()}  # type: ignore[dict-item]
        else:
            settings |= {"topics": [self._topic], "hours": ALL_HOURS, "unasked": True, "catalog": CATALOG}  # type: ignore[dict-item]
        self._settings.write_text(json.dumps(settings))
        process = Process(
            [job, str(self._settings)],
            env={**self._disk.env, **self._settings_of_the_catalog(), "DISK_DIE_AT": str(point)},
            module="tests.trials.faultload.alone",
        )
        code = process.wait(timeout_s=120)
        if code not in (0, DIED):
            raise Failed(f"{job} after a power cut ended with exit code {code}: {process.output[-500:]}")
        return code

    def _through(self, job: str, run_id: str) -> None:
        if self._try(job, run_id, 0) != 0:
            raise Failed(f"{job} ended at a sync though nobody asked it to")

    def _compare(self) -> None:
        seen, published = self._seen().seen, self._published
        for instance, sequences in self._ledger.acknowledged(self._topic).items():
            for where, found in (("loads", seen), ("table", published)):
                if missing := sequences - found.get((instance, "power"), set()):
                    raise Problem(
                        f"{self._root}: {len(missing)} events are lost in the {where}: {min(missing)}"
                    )
        bootstrap = self._place.site.cluster.bootstrap
        verified = run_millrace(
            *(
                "verify",
                "--warehouse",
                str(self._root),
                "--bootstrap",
                bootstrap,
                "--catalog",
                CATALOG,
                "--rows",
                "--json",
            ),
            env=self._settings_of_the_catalog(),
        )
        if verified.returncode != 0:
            raise Problem(f"{self._root}: {verified.stderr.strip().splitlines()[-1]}")
