"""Power cuts of the machine that holds the warehouse, while loads and hours are published there.

The model is that of the broker's disk: what a process has not synced is lost, kept or garbage, each for
itself, files that pyarrow wrote included, because nothing is certain but what a sync has covered. After a cut
the same jobs run again. What a job had called published before the cut must be there; then nothing may be
missing or twice, and `verify` must find nothing.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable

from tests.faultload.place import Place
from tests.faultload.produced import HOURS, START_MS, Ledger
from tests.faultload.runs import ALL_HOURS, Failed
from tests.faultload.watch import Problem, Topic, hourly_rows
from tests.integration.faults.disk import Disk
from tests.support import Process, run_millrace
from tests.warehouses import EMPTY_EVENT, HOUR_MS

EVENTS = 60
SYNCS = 60
"""About as many as a load or an hour makes; the process ends at one of them, or gets to its end."""
DIED = 9
"""Exit code of a process that the disk has ended."""


class PowerCuts:
    """A warehouse of its own on a disk that loses power; one topic that grows from round to round."""

    def __init__(self, place: Place, chance: random.Random, say: Callable[[str], None]) -> None:
        self._place, self._chance, self._say = place, chance, say
        folder = place.folder / "power"
        self._root, self._books = folder / "warehouse", folder / "disk"
        self._root.mkdir(parents=True)
        self._disk = Disk(self._books, self._root, chance)
        self._topic = place.site.topic("PowerCut", 3)
        self._ledger = Ledger()
        self._settings = folder / "settings.json"

    @property
    def lost(self) -> str:
        """What the cuts took: rounds that lost nothing would show nothing."""
        return f"{self._disk.lost_bytes} bytes and {self._disk.lost_names} names"

    def round(self) -> None:
        """One cut, at some sync of a load or of an hour; Problem or Failed when anything is wrong then."""
        self._produce()
        load, hour = f"load-{uuid.uuid4().hex}", f"hourly-{uuid.uuid4().hex}"
        meets_load = self._chance.random() < 0.5
        point = self._chance.randint(1, SYNCS)
        if not meets_load:
            self._through("load", load)
        before = self._seen()
        died = self._try("load" if meets_load else "hourly", load if meets_load else hour, point) == DIED
        if not died:
            before = self._seen()  # it has said that everything is published
        self._disk.cut_power()
        self._say(
            f"power cut {'at' if died else 'after'} sync {point} of {'a load' if meets_load else 'an hour'}"
        )
        after = self._seen()
        if not before.loads.items() <= after.loads.items():
            raise Problem(f"{self._root}: a load that was published before the power cut is not as it was")
        self._through("load", load)
        self._through("hourly", hour)
        self._compare()

    def _produce(self) -> None:
        with self._place.site.producer("power") as producer:
            for _ in range(EVENTS):
                self._ledger.hand_over(self._topic, producer.instance, "power")
                time_ms = START_MS + self._chance.randrange(HOURS * HOUR_MS)
                producer.send(self._topic, self._topic, EMPTY_EVENT, time_ms=time_ms)
            producer.flush()
            self._ledger.settle(producer)

    def _seen(self) -> Topic:
        """What a reader sees; Problem when it should not."""
        topic = Topic(self._root, self._topic, self._ledger)
        topic.look(self._chance)
        hourly_rows(self._root, self._topic)
        return topic

    def _try(self, job: str, run_id: str, point: int) -> int:
        """Exit code of one try; with `point` it ends instead of that sync."""
        settings = {"warehouse": str(self._root), "run_id": run_id}
        if job == "load":
            settings |= {"topics": [self._topic], "cut_bytes": 2_000, **self._place.sources()}  # type: ignore[dict-item]
        else:
            settings |= {"topic": self._topic, "hours": ALL_HOURS}  # type: ignore[dict-item]
        self._settings.write_text(json.dumps(settings))
        process = Process(
            [job, str(self._settings)],
            env={**self._disk.env, "DISK_DIE_AT": str(point)},
            module="tests.faultload.alone",
        )
        code = process.wait(timeout_s=120)
        if code not in (0, DIED):
            raise Failed(f"{job} after a power cut ended with exit code {code}: {process.output[-500:]}")
        return code

    def _through(self, job: str, run_id: str) -> None:
        if self._try(job, run_id, 0) != 0:
            raise Failed(f"{job} ended at a sync though nobody asked it to")

    def _compare(self) -> None:
        seen, hours = self._seen().seen, hourly_rows(self._root, self._topic)
        for instance, sequences in self._ledger.acknowledged(self._topic).items():
            for where, found in (("loads", seen), ("hours", hours)):
                if missing := sequences - found.get((instance, "power"), set()):
                    raise Problem(
                        f"{self._root}: {len(missing)} events are lost in the {where}: {min(missing)}"
                    )
        bootstrap = self._place.site.cluster.bootstrap
        verified = run_millrace("verify", str(self._root), "--bootstrap", bootstrap, "--json")
        if verified.returncode != 0:
            raise Problem(f"{self._root}: {verified.stderr.strip().splitlines()[-1]}")
