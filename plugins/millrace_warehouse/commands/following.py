"""`millrace load --follow`: a resident loader of many topics, in turn in a process or side by side on Spark.

Each topic has its own state (`load.resident`), its own connections and its own branch. A topic that a person
must look at ends, and the other topics go on. Anything else that fails is tried again with the next turn. It
does not import Spark: the job passes an `Engine`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyiceberg.catalog import Catalog

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ConfigError, MillraceError, is_bug
from millrace.logs import start_logging
from millrace.service.monitoring import serve_metrics
from millrace_warehouse.commands.load_context import (
    compare_with_auditor,
    load_context,
    notes_on,
    run_of,
    show_live,
)
from millrace_warehouse.context import Context, quiet
from millrace_warehouse.history.layout import Topic, check_topic
from millrace_warehouse.history.same_log import RefusedLog
from millrace_warehouse.history.schemas import schema_numbers
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.load.open_load import OpenLoad
from millrace_warehouse.load.range_writer import LoadContext, Pinned
from millrace_warehouse.load.resident import Answer, Branch, Resident
from millrace_warehouse.load.task import RunTasks
from millrace_warehouse.publish.catalog import CatalogError, connect
from millrace_warehouse.publish.live import Live, ShownTail, Tail
from millrace_warehouse.requests import Load
from millrace_warehouse.storage import open_storage

logger = logging.getLogger("millrace.load")

LEASE_INTERVALS = 3
"""Pauses for which another loader leaves a tail alone that was shown."""
BROKERS_S = 10.0
"""Time limit of a request to the brokers: a longer wait would keep other topics waiting."""
SWEEP_S = 3600.0
"""Pause between two sweeps of metadata files, and the age of files that a sweep deletes."""
OUTAGE_TIMES, LONGEST_OUTAGE_S = 4.0, 600.0
"""Pause after a catalog's failure, as a multiple of the time that the failure took, and its limit."""
TURNS_BEHIND = 20
"""Turns in a row that leave messages, after which one process is called too slow for a topic."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The place where the tasks of resident loaders run."""

    run_tasks: RunTasks
    cores: Callable[[], int]
    """Function that returns the number of cores on which tasks run now."""
    is_here: bool
    """True for this process: its topics take turns in one thread, and tasks use their topic's own client."""


def _run_here(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    return [function(task) for task in tasks]


HERE = Engine(run_tasks=_run_here, cores=lambda: 1, is_here=True)


@dataclass(slots=True)
class Outage:
    """The last failure of a catalog, which is then left alone: its time limits would delay loads."""

    error: Exception | None = None
    until: float = 0.0
    """Time of the monotonic clock until which the catalog is left alone."""

    def note(self, error: Exception, took_s: float) -> None:
        """Leave the catalog alone in proportion to the time that the failed question took."""
        self.error, self.until = error, time.monotonic() + min(OUTAGE_TIMES * took_s, LONGEST_OUTAGE_S)


class LiveBranch(Branch):
    """Branch `live` of a topic's table, as a resident loader keeps it up to date."""

    def __init__(
        self,
        topic: Topic,
        open_catalog: Callable[[], Catalog],
        lease_s: float,
        clock: Callable[[], float] = time.time,
        outage: Outage | None = None,
    ) -> None:
        """`outage` is shared by the branches that ask one catalog in turn."""
        self.trouble: str | None = None
        """Reason why the branch is behind; None while it is not."""
        self._topic, self._open_catalog, self._lease_s, self._clock = topic, open_catalog, lease_s, clock
        self._live: Live | None = None
        self._of_catalog, self._of_table = outage or Outage(), Outage()
        self._sweep_at = clock() + SWEEP_S

    @property
    def refused(self) -> int:
        """Number of commits that the catalog refused."""
        return 0 if self._live is None else self._live.refused

    def show(self, load: OpenLoad | None) -> Answer:
        if (load is None or not load.entries) and not schema_numbers(self._topic):
            return Answer.SHOWN  # there was never a row of the topic, and the table would have no columns
        tail = None if load is None else self._tail(load)
        return self._ask(lambda live: live.follow(tail, on=True), load)

    def withdraw(self, load: OpenLoad) -> Answer:
        return self._ask(lambda live: live.follow(dropped=load.attempt, on=True), None)

    def _tail(self, load: OpenLoad) -> Tail:
        return Tail(
            load=load.number,
            attempt=load.attempt,
            ends=load.ends,
            schema=load.pinned.table_schema.number,
            entries=load.entries,
            lease_s=self._lease_s,
        )

    def _ask(self, question: Callable[[Live], ShownTail | None], load: OpenLoad | None) -> Answer:
        began = time.monotonic()
        for outage in (self._of_catalog, self._of_table):
            if outage.error is not None and began < outage.until:
                self._note(outage.error)
                return Answer.UNKNOWN
        try:
            if self._live is None:
                catalog = self._open_catalog()
                context = Context(storage=self._topic.storage, catalog=catalog, clock=self._clock)
                self._live = Live(context, self._topic)
            shown = question(self._live)
            self._sweep(self._live)
        except Exception as error:  # also of a catalog's library: loads go on whatever it raises
            outage = self._of_catalog if isinstance(error, CatalogError) else self._of_table
            outage.note(error, time.monotonic() - began)
            self._note(error)
            return Answer.UNKNOWN
        self.trouble = None
        is_of_other = shown is not None and (load is None or shown.attempt != load.attempt)
        return Answer.TAKEN if shown and is_of_other and shown.is_leased(self._clock()) else Answer.SHOWN

    def _sweep(self, live: Live) -> None:
        if self._clock() >= self._sweep_at:
            self._sweep_at = self._clock() + SWEEP_S
            live.sweep(SWEEP_S)

    def _note(self, error: Exception) -> None:
        if (text := _text_of(error)) != self.trouble:  # once for each cause
            logger.warning(
                "%s: branch live is behind: %s; loads go on", self._topic, text, exc_info=is_bug(error)
            )
        self.trouble = text


class NoBranch(Branch):
    """The branch of a topic whose policy does not ask for one, or switches it off."""

    trouble: str | None = None
    refused = 0

    def show(self, load: OpenLoad | None) -> Answer:
        return Answer.OFF

    def withdraw(self, load: OpenLoad) -> Answer:
        return Answer.OFF


class Follower:
    """One topic of the process."""

    def __init__(
        self,
        request: Load,
        topic: Topic,
        engine: Engine,
        opened: ExitStack,
        open_catalog: Callable[[], Catalog],
        outage: Outage,
    ) -> None:
        self.topic = topic
        self.started = time.time()
        self.loads, self.rows = 0, 0
        """Loads made by this process, and their rows."""
        self.trouble: str | None = None
        """Reason why the newest turn failed; None if it did not."""
        self.is_over = False
        """True if a person must act; the topic has no more turns."""
        self.branch: LiveBranch | NoBranch = NoBranch()
        self._request = request
        self._is_checked = False
        """True if the folder was compared with the auditor's counts since the newest load."""
        if request.live:
            lease_s = LEASE_INTERVALS * request.every_s
            self.branch = LiveBranch(topic, open_catalog, lease_s, outage=outage)
        self._advises = engine.is_here
        """True until the log has named the other engine."""
        context = opened.enter_context(
            load_context(request, "load", topic, engine.run_tasks, timeout_s=BROKERS_S)
        )
        pin = partial(_with_client, context) if engine.is_here else context.pin
        run = run_of(replace(context, pin=pin, progress=quiet), request)
        self.resident = Resident(run, topic.name, self.branch, cores=engine.cores)

    @property
    def lag_s(self) -> float | None:
        """Age of the oldest message that branch `live` may lack; None without the branch."""
        if isinstance(self.branch, NoBranch):
            return None
        return time.time() - (self.resident.shown_through or self.started)

    def turn(self) -> LoadResult | None:
        """Let the topic read on. Return the load that was made. An error is noted, once for each cause."""
        made = self._try(self._turn)
        if self._advises and self.resident.turns_behind >= TURNS_BEHIND:
            self._advises = False
            logger.warning(
                "%s: each of the last %d turns has left messages: one process may be too slow for this topic;"
                " --engine spark loads it on many cores",
                self.topic,
                TURNS_BEHIND,
            )
        return made

    def stop(self) -> LoadResult | None:
        """Make the last load, of what was read. Return it."""
        return self._try(self.resident.stop)

    def _turn(self) -> LoadResult | None:
        """Let the topic read on, unless it must not be loaded into this warehouse."""
        if not self._is_checked:
            check_topic(self.topic)
            for note in compare_with_auditor(self._request.auditor, self.topic):
                logger.warning(note)
            self._is_checked = True
        return self.resident.turn()

    def _try(self, work: Callable[[], LoadResult | None]) -> LoadResult | None:
        try:
            result = work()
            self.trouble = None
            return None if result is None else self._counted(result)
        except (RefusedLog, ConfigError) as error:  # the topic gets no more turns
            self.trouble, self.is_over = str(error), True
            logger.error("%s: %s; the topic is not loaded any more", self.topic, error)
        except Exception as error:  # of one topic: the other topics go on
            if (text := _text_of(error)) != self.trouble:
                logger.warning("%s: %s; the next turn tries again", self.topic, text, exc_info=is_bug(error))
            self.trouble = text
        return None

    def _counted(self, result: LoadResult) -> LoadResult:
        self.loads += 1
        self.rows += result.rows
        self._is_checked = False  # for the next load
        notes = [*notes_on(self.topic, self._request, result)]
        if isinstance(self.branch, NoBranch):
            notes += show_live(self._request, self.topic)
        return replace(result, notes=[*result.notes, *notes])


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, MillraceError) else f"unexpected {type(error).__name__}: {error}"


def _with_client(context: LoadContext, topic: str, used: int) -> Pinned:
    """Pin a topic's schema for tasks that all use the context's own client."""

    def connected() -> nullcontext[ClusterClient]:
        return nullcontext(context.client)

    pinned = context.pin(topic, used)
    return replace(pinned, source=replace(pinned.source, connect=connected))


class FollowNumbers(Collector):
    """The numbers of a resident loader. Requests read them in threads of their own."""

    def __init__(self) -> None:
        self.followers: Sequence[Follower] = ()

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Return whether all topics are loaded and shown, and the reasons of those that are not."""
        troubles = {
            follower.topic.name: follower.trouble or follower.branch.trouble for follower in self.followers
        }
        found = {topic: trouble for topic, trouble in troubles.items() if trouble}
        return not found, {"troubles": found}

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "millrace_live_lag_seconds",
            "Time since branch `live` last showed all messages of the log.",
            labels=["topic"],
        )
        tail = GaugeMetricFamily(
            "millrace_tail_rows", "Rows that were read and are in no load yet.", labels=["topic"]
        )
        trouble = GaugeMetricFamily(
            "millrace_follow_trouble", "1 for a topic that cannot be loaded now; else 0.", labels=["topic"]
        )
        refused = CounterMetricFamily(
            "millrace_live_refused", "Commits of branch `live` that the catalog refused.", labels=["topic"]
        )
        loads = CounterMetricFamily("millrace_follow_loads", "Loads made.", labels=["topic"])
        rows = CounterMetricFamily("millrace_follow_rows", "Rows in the loads made.", labels=["topic"])
        for follower in self.followers:
            topic = [follower.topic.name]
            if follower.lag_s is not None:
                lag.add_metric(topic, follower.lag_s)
            tail.add_metric(topic, follower.resident.tail_rows)
            trouble.add_metric(topic, follower.trouble is not None)
            refused.add_metric(topic, follower.branch.refused)
            loads.add_metric(topic, follower.loads)
            rows.add_metric(topic, follower.rows)
        yield from (lag, tail, trouble, refused, loads, rows)


def ready_line(request: Load) -> str:
    """Return the line for people and supervisors when the topics are followed."""
    return f"ready: follows {', '.join(request.topics)}"


def serve_numbers(request: Load) -> FollowNumbers:
    """Start to log, and to serve metrics where the request says. Return the metrics, still without topics."""
    start_logging()
    for chatty in ("httpx", "py4j", "pyiceberg"):  # else lines for every request and every commit
        logging.getLogger(chatty).setLevel(logging.WARNING)
    numbers = FollowNumbers()
    serve_metrics(
        numbers, numbers.health, request.metrics_listen, request.access_file, request.certificate, request.key
    )
    return numbers


def follow_topics(
    request: Load,
    stop: threading.Event,
    numbers: FollowNumbers,
    on_load: Callable[[LoadResult], None],
    engine: Engine = HERE,
) -> list[str]:
    """Load the request's topics until `stop` is set. Return a reason for each topic that cannot be loaded.

    Return early when every topic is over. On another engine each topic has a thread, which calls `on_load`.
    """
    storage = open_storage(request.warehouse)
    with ExitStack() as opened:

        def catalog_once() -> Callable[[], Catalog]:
            # Opened when it is first needed: a catalog that is down delays no load.
            return cache(lambda: opened.enter_context(connect(storage, request.catalog)))

        shared, outage = catalog_once(), Outage()
        numbers.followers = followers = [
            Follower(
                request.for_topic(name),
                Topic(storage, name),
                engine,
                opened,
                shared if engine.is_here else catalog_once(),
                outage if engine.is_here else Outage(),
            )
            for name in request.topics
        ]
        follow = partial(_follow, stop, request.every_s, on_load)
        if engine.is_here:
            follow(followers)
        else:
            with ThreadPoolExecutor(len(followers), "follow") as pool:
                list(pool.map(lambda follower: follow([follower]), followers))
    return [follower.trouble for follower in followers if follower.trouble is not None]


def _follow(
    stop: threading.Event,
    every_s: float,
    on_load: Callable[[LoadResult], None],
    followers: Sequence[Follower],
) -> None:
    """Give the topics turns until `stop` is set or every topic is over. Then make their last loads."""
    try:
        while not stop.is_set() and (loaded := [each for each in followers if not each.is_over]):
            _take_turns(loaded, stop, every_s, on_load)
        for follower in followers:
            if not follower.is_over and (last := follower.stop()) is not None:
                on_load(last)
    except BaseException:
        stop.set()  # else the other threads would go on for ever
        raise


def _take_turns(
    followers: Sequence[Follower],
    stop: threading.Event,
    every_s: float,
    on_load: Callable[[LoadResult], None],
) -> None:
    """Give each topic a turn, then wait, unless a topic has more to read."""
    began = time.monotonic()
    for follower in followers:
        if not stop.is_set() and (made := follower.turn()) is not None:
            on_load(made)
    if not any(follower.trouble is None and follower.resident.is_behind for follower in followers):
        stop.wait(max(0.0, every_s - (time.monotonic() - began)))
