"""Any order of messages, bounded loads, retries, promotions and expiry, cut off anywhere: each offset once.

The log is in memory, all else is real. What must hold is worked out from the log itself: every record that
was ever appended is a row of exactly one load, or set aside in exactly one, or in a gap that says it expired.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_warehouse.history.layout import Folder, Topic, load_numbers, read_load
from millrace_warehouse.history.manifest import LoadManifest, check_follows, check_hash, check_law
from millrace_warehouse.history.schemas import all_schemas, promote
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.log.bounds import Bounds
from millrace_warehouse.storage import Storage, open_storage
from tests.support import ROUNDS
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, MemoryLog, load_run, with_field
from tests.unit.warehouse.storages import CutOff, MortalStorage, UnansweredStorage, problems

STEPS = 25
Place = tuple[int, int]
"""(partition, offset)"""


class History:
    """One topic and its warehouse through some random steps."""

    def __init__(self, warehouse: Path, chance: random.Random) -> None:
        self.warehouse, self.chance = warehouse, chance
        self.log = MemoryLog(3)
        self.appended: set[Place] = set()
        self.runs: list[str] = []
        self.plans: dict[str, bytes] = {}
        self.done: list[str] = []

    def step(self) -> None:
        """One thing that may happen to a topic; then whatever can be seen must be right."""
        steps = [self.produce, self.produce, self.load, self.load, self.retry, self.promote, self.register]
        what = self.chance.choice([*steps, self.control, self.expire])
        self.done.append(what.__name__)
        what()
        self.look()

    def produce(self) -> None:
        partition = self.chance.randrange(3)
        one = self.log.partitions[partition]
        before = len(one.log)
        times = [START + self.chance.randrange(3 * HOUR) for _ in range(self.chance.randrange(1, 40))]
        schema = self.chance.choice(list(self.log.schemas))
        fields = {each["name"]: 1 for each in self.log.schemas[schema]["fields"][2:]}
        more: dict[str, Any] = {"batch": self.chance.randrange(1, 15), "schema": schema, **fields}
        self.log.append_events(partition, times, **more)
        if self.chance.random() < 0.3:
            self.log.append(partition, [Message(START, None, b"broken")] * 2)
        new = (header for header in one.batches() if header.base_offset >= before)
        self.appended |= {
            (partition, header.base_offset + n) for header in new for n in range(header.records_count)
        }

    def control(self) -> None:
        self.log.append_control(self.chance.randrange(3), bytes(self.chance.randrange(300)))

    def expire(self) -> None:
        self.log.expire(self.chance.randrange(3), self.chance.randrange(3))

    def register(self) -> None:
        newest = max(self.log.schemas)
        schema = with_field(f"field{newest}", ["int", "null"], 0, self.log.schemas[newest])
        self.log.schemas[newest + 1] = schema

    def load(self) -> None:
        self.runs.append(f"run {len(self.runs)}")
        self.run(self.runs[-1])

    def retry(self) -> None:
        if self.runs:
            self.run(self.chance.choice(self.runs[-3:]))

    def run(self, run_id: str) -> None:
        """A load with some bounds, which may end at any change it makes to the warehouse."""
        bounds = Bounds(
            max_bytes=self.chance.choice([None, None, 1, 500, 3_000]),
            until_ms=self.chance.choice([None, None, START + HOUR, START + 2 * HOUR]),
        )
        run = load_run(self.log, self.storage(), run_id, bounds=bounds, cut_bytes=900)
        try:
            load_topic(run, TOPIC)
        except CutOff:
            self.done[-1] += " cut off"
        except MillraceError as error:
            if "not answered" not in str(error):
                raise
            self.done[-1] += " unanswered"

    def promote(self) -> None:
        newest = self.chance.choice(list(self.log.schemas))
        try:
            promote(Topic(self.storage(), TOPIC), newest, "a test", self.log.schemas.get)
        except CutOff:
            self.done[-1] += " cut off"
        except MillraceError as error:
            if "no load of" not in str(error) and "not answered" not in str(error):
                raise

    def storage(self) -> Storage:
        """The warehouse, which may end the process at a change, or leave a create without an answer."""
        ends = self.chance.randrange(1, 40) if self.chance.random() < 0.5 else None
        answers = self.chance.choice([1.0, 0.7])

        def happens(_: str) -> bool | None:
            return None if self.chance.random() < answers else self.chance.random() < 0.5

        return UnansweredStorage(MortalStorage(self.warehouse, ends), happens)

    def manifests(self) -> Iterator[LoadManifest]:
        storage = open_storage(str(self.warehouse))
        for number in load_numbers(Topic(storage, TOPIC)):
            yield read_load(Topic(storage, TOPIC), number)

    def look(self) -> None:
        """The chain of loads is whole, no plan was changed, no schema goes back, nothing is there twice."""
        before: LoadManifest | None = None
        for number, manifest in enumerate(self.manifests(), 1):
            assert manifest.load == number, self.done
            assert check_hash(manifest) is None
            assert check_law(manifest) == []
            assert check_follows(manifest, before) == [], self.done
            if before is not None:
                assert manifest.schema >= before.schema, self.done
            before = manifest
        numbers = [each.number for each in all_schemas(Topic(open_storage(str(self.warehouse)), TOPIC))]
        assert numbers == list(range(1, len(numbers) + 1))
        for path in (self.warehouse / Folder.PLANS.path(TOPIC)).glob("[!.]*"):
            assert self.plans.setdefault(path.name, path.read_bytes()) == path.read_bytes(), self.done

    def settle(self) -> None:
        """Load the rest; then every record is somewhere, once."""
        load_topic(load_run(self.log, self.warehouse, "last"), TOPIC)
        self.look()
        assert problems(self.warehouse, TOPIC) == [], self.done
        found = Counter(self.rows("files", "_topic_partition", "_offset"))
        found.update(self.rows("rejected_files", "partition", "offset"))
        assert set(found.values()) <= {1}, self.done
        gaps = [
            (part.partition, gap.start, gap.end)
            for manifest in self.manifests()
            for part in manifest.partitions
            for gap in part.gaps
        ]
        missing = self.appended - found.keys()
        assert all(any(p == q and a <= o < b for q, a, b in gaps) for p, o in missing), self.done
        assert found.keys() <= self.appended

    def rows(self, files: str, *columns: str) -> Iterator[Place]:
        for manifest in self.manifests():
            for file in getattr(manifest, files):
                table = pq.read_table(self.warehouse / TOPIC / file.path, columns=list(columns))
                yield from zip(*(table[column].to_pylist() for column in columns), strict=True)


def run(seed: int, folder: Path) -> None:
    history = History(folder, random.Random(seed))
    for _ in range(STEPS):
        history.step()
    history.settle()


@pytest.mark.parametrize("seed", range(4))
def test_every_offset_is_in_exactly_one_load_whatever_happens(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2_000, 2_000 + 20 * ROUNDS))
def test_every_offset_is_in_exactly_one_load_for_longer(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)
