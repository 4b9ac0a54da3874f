"""One topic of a resident loader: when it reads, what it shows before the load is made, and when it makes it.

Each turn reads the new messages into the open load and shows them on the table's branch `live`. Every SEAL_S,
and at SEAL_BYTES for each core, the open load is *sealed*: completed, and created as any load is. Until then
nothing of it counts, so a loader may die at any moment: the next one reads the same offsets again. The branch
decides nothing, so loads are made while the catalog is down. Knows neither the catalog nor Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Protocol

from millrace.client.cluster_client import LATEST
from millrace_warehouse.history import layout
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.same_log import RefusedLog
from millrace_warehouse.load.attempt import create
from millrace_warehouse.load.load import (
    LoadResult,
    LoadRun,
    check_ends,
    check_log,
    heal,
    loaded_parts,
    made_result,
    record_made,
)
from millrace_warehouse.load.open_load import OpenLoad
from millrace_warehouse.races import Conflict

SEAL_S = 300.0
"""Age at which the open load is sealed. Fewer loads keep history short; rows are visible before."""
SEAL_BYTES = 256 << 20
"""Bytes of log for each core at which the open load is sealed."""
TURN_BYTES = 64 << 20
"""Bytes of log for each core that one turn reads, so that no topic keeps other topics waiting."""
UNSHOWN_S = 60.0
"""Least time between two loads of a topic without a branch `live`, whose every turn is a load."""


class Answer(Enum):
    """State of the branch `live` after a question."""

    SHOWN = auto()
    """The branch shows the loads, and the open load if one was given."""
    OFF = auto()
    """The topic's table has no branch `live`."""
    TAKEN = auto()
    """The branch shows the open load of another loader, whose lease has not ended."""
    UNKNOWN = auto()
    """The catalog does not answer."""


class Branch(Protocol):
    """The branch `live` of a topic's table. Its methods never raise MillraceError."""

    def show(self, load: OpenLoad | None) -> Answer:
        """Show all loads, and the rows of the open load behind them."""

    def withdraw(self, load: OpenLoad) -> Answer:
        """Show the rows of an open load no more: it will never be made."""


class Resident:
    """The resident loader's state of one topic."""

    def __init__(
        self,
        run: LoadRun,
        name: str,
        branch: Branch,
        *,
        cores: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cores` returns the number of cores on which tasks run now. Turns and loads grow with it."""
        self.shown_through: float | None = None
        """Unix time up to which the branch shows the log; None until it does."""
        self.turns_behind = 0
        """Number of the last turns that left messages which were there when the turn began."""
        self._run, self._branch, self._cores, self._clock = run, branch, cores, clock
        self._topic = layout.Topic(run.context.storage, name)
        self._load: OpenLoad | None = None
        self._began = 0.0
        """Time of the clock at which the open load began."""
        self._answer: Answer | None = None
        """The branch's last answer; None before the first."""
        self._rests_until = 0.0
        self._newest: LoadManifest | None = None
        """Newest load that was seen. Its entry in the ledger was looked up."""

    @property
    def is_behind(self) -> bool:
        """True if the last turn left messages that were there when it began."""
        return self.turns_behind > 0

    @property
    def tail_rows(self) -> int:
        """Rows that were read and are in no load yet."""
        return 0 if self._load is None else self._load.rows

    def turn(self) -> LoadResult | None:
        """Read and show the new messages, and make the load if it is due. Return the load that was made.

        Raise RefusedLog if a person must act; then nothing is shown that no load has. Raise MillraceError for
        anything else that fails; the next turn tries it again.
        """
        try:
            return self._turn()
        except RefusedLog:
            self._drop()
            raise
        except Conflict:  # another run has pinned another schema, or files of the open load are gone
            self._drop()
            return None

    def stop(self) -> LoadResult | None:
        """Make a load of what was read. Return it, or None if nothing new was read. Raise as `turn` does."""
        try:
            made = self._settle(self._newest_load())
            if made is None and self._load is not None and not self._load.is_empty:
                made = self._seal(self._load)
        except RefusedLog:
            self._drop()
            raise
        except Conflict:
            self._drop()
            return None
        return made

    def _turn(self) -> LoadResult | None:
        newest = self._newest_load()
        if (made := self._settle(newest)) is not None:
            return made
        if self._load is not None and self._load.manifest is None and self._load.is_outdated():
            self._drop()
        if self._load is not None and self._is_due(self._load):
            return self._seal(self._load)
        is_answered = self._answer in (Answer.SHOWN, Answer.OFF)
        if self._load is None and not is_answered and self._show(None) is Answer.TAKEN:
            return None  # stands by
        if self._load is None and self._clock() < self._rests_until:
            return None
        return self._read_on(newest)

    def _newest_load(self) -> LoadManifest | None:
        """Return the newest load. Raise RefusedLog if the topic's folder no longer has the load that was the
        newest before: the auditor may have counted it, so its number must not be used again.
        """
        newest, before = layout.newest_load(self._topic), self._newest
        if newest is None or before is None or newest.sha256 != before.sha256:
            if before is not None and not _has(self._topic, before, newest):
                path = layout.load_path(self._topic.name, before.load)
                raise RefusedLog(
                    f"{path} is gone or was replaced while this loader ran: was"
                    f" {self._topic.storage.uri(self._topic.name)} restored from an older copy? Restore a"
                    " newer one, then start the loader again"
                )
            heal(self._run.context, newest)
            self._newest = newest
        return newest

    def _settle(self, newest: LoadManifest | None) -> LoadResult | None:
        """Find out what has become of the open load. Return its result if it is made."""
        load = self._load
        if load is None or (there := load.made_by(newest)) is None:
            return None
        if there.attempt == load.attempt:  # made by a create that had no answer
            return self._made(load, there)
        self._lose(load)
        return None

    def _read_on(self, newest: LoadManifest | None) -> LoadResult | None:
        client, began = self._run.context.client, time.time()
        topic_id = client.topic(self._topic.name).topic_id.hex
        ends = client.list_offsets(self._topic.name, LATEST)
        if self._load is not None and self._load.plan.topic_id != topic_id:
            self._drop()  # the topic was recreated
        if self._load is None or self._load.is_empty:
            self._load, self._began = self._begin(topic_id, newest, ends), self._clock()
        if (load := self._load) is None:
            self._note_shown(began)
            return None
        reached = load.read(ends, TURN_BYTES * self._cores())
        self.turns_behind = 0 if reached else self.turns_behind + 1
        # A load that is behind is not shown: it might show less than another loader's tail did before.
        if reached and self._answer is not Answer.OFF:
            if load.entries:
                load.pin()
            if self._show(load) is Answer.TAKEN:
                self._load = None
                load.discard()
                return None
            self._note_shown(began)
        is_due = self._is_due(load) or (reached and self._answer is Answer.OFF)
        return self._seal(load) if is_due else None

    def _begin(self, topic_id: str, newest: LoadManifest | None, ends: Mapping[int, int]) -> OpenLoad | None:
        """Return an open load after the newest load, or None if the log holds nothing new."""
        name = self._topic.name
        check_log(self._run, topic_id, newest)
        loaded = loaded_parts(topic_id, newest)
        check_ends(name, ends, loaded)
        if all(end <= (loaded[p].reach if p in loaded else 0) for p, end in ends.items()):
            return None
        return OpenLoad.begin(self._run, topic_id, name, newest)

    def _is_due(self, load: OpenLoad) -> bool:
        if load.is_empty:
            return False
        if load.manifest is not None:
            return True  # its create had no answer
        age = self._clock() - self._began
        return load.bytes >= SEAL_BYTES * self._cores() or age >= SEAL_S or load.has_old_schema()

    def _note_shown(self, began: float) -> None:
        """Note that the branch shows all messages that the log held at a time, if it does."""
        self.turns_behind = 0
        if self._answer is Answer.SHOWN:
            self.shown_through = began

    def _seal(self, load: OpenLoad) -> LoadResult | None:
        manifest = load.manifest or load.complete()
        if create(self._topic, manifest):
            self._run.context.progress("committed")
            return self._made(load, manifest)
        self._lose(load)
        return None

    def _made(self, load: OpenLoad, manifest: LoadManifest) -> LoadResult:
        self._load = None
        if self._answer is Answer.OFF:
            self._rests_until = self._clock() + UNSHOWN_S
        try:
            notes = record_made(self._run.context, manifest)
            if not notes:  # else the next turn finds the load, and heals
                self._newest = manifest
            return made_result(self._run, load.plan, manifest, load.pinned, notes)
        finally:
            self._show(None)

    def _lose(self, load: OpenLoad) -> None:
        """Begin from the load of another driver, which has taken the number."""
        self._load = None
        if self._show(None) is not Answer.UNKNOWN:  # else the branch may still name the files
            load.discard()

    def _drop(self) -> None:
        """Give the open load up. Its files stay if a create without an answer may still make it."""
        load, self._load = self._load, None
        if load is None or self._ask(lambda: self._branch.withdraw(load)) is Answer.UNKNOWN:
            return
        if load.manifest is None:
            load.discard()

    def _show(self, load: OpenLoad | None) -> Answer:
        return self._ask(lambda: self._branch.show(load))

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        self._answer = question()
        return self._answer


def _has(topic: layout.Topic, load: LoadManifest, newest: LoadManifest | None) -> bool:
    """Return True if a topic's folder, whose newest load is given, has this very load."""
    if newest is None or newest.load < load.load:
        return False
    there = newest if newest.load == load.load else layout.read_load(topic, load.load)
    return there.sha256 == load.sha256
