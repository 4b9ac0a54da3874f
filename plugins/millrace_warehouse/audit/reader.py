"""The warehouse's reader: counts the rows in the files of loads, and in the published tables.

A process that writes rows may not count them, so loads and publications do not report themselves. One process
counts a warehouse. It takes the turn of the tier `warehouse` in the aggregate cluster's ZooKeeper, as other
readers take theirs; further processes stand by. Its counts are signed. A topic that cannot be read does not
delay the other topics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pyiceberg.catalog import Catalog

from millrace.client.cluster_client import ClusterClient
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import MillraceError, TopicAlreadyExists
from millrace.zookeeper.session import Session
from millrace_audit.reader.numbers import PREFIX, TierNumbers
from millrace_audit.reader.rounds import IDLE_HEARTBEAT_S, TierReader
from millrace_audit.reports.messages import (
    NOTHING,
    WAREHOUSE,
    AuditCodec,
    Heartbeat,
    LoadCount,
    TableCount,
    Verified,
    WarehouseState,
    now_ms,
)
from millrace_audit.reports.mirrors import cluster_name
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS, AuditPublisher, table_records
from millrace_audit.reports.turn_taker import TurnTaker
from millrace_audit.reports.turns import Seat, Turn
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.audit import findings
from millrace_warehouse.audit.loads import LoadId, Loads
from millrace_warehouse.audit.read_back import read_back
from millrace_warehouse.audit.tables import PublishedTable
from millrace_warehouse.history.layout import Folder, Topic, edition_path
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.requests import AuditWarehouse
from millrace_warehouse.storage import open_storage

logger = logging.getLogger("millrace.audit.warehouse")

Numbered = Heartbeat | TableCount | Verified | WarehouseState
"""Records with a number of the turn."""
_TIMEOUT_S = 10.0
MOST_LETTERS = 500
"""Largest length of a reported reason why a table cannot be counted."""


class WarehouseNumbers(TierNumbers):
    """The numbers of a warehouse's reader."""

    def __init__(self) -> None:
        super().__init__(WAREHOUSE)
        self.rows = {"loads": 0, "table": 0, "erased": 0}
        self.problems: Sequence[str] = ()
        """Topics that cannot be counted now, each with the reason."""

    def troubles(self) -> list[str]:
        return [*super().troubles(), *self.problems]

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        rows = CounterMetricFamily(PREFIX + "rows", "Rows with a header counted.", labels=["tier", "of"])
        for kind, count in self.rows.items():
            rows.add_metric([self.tier, kind], count)
        yield rows
        problems = GaugeMetricFamily(PREFIX + "problems", "What cannot be counted now.", labels=["tier"])
        problems.add_metric([self.tier], len(self.problems))
        yield problems


class WarehouseReader(TierReader):
    """Counts one warehouse until `stop` is set. Raise MillraceError when it cannot start."""

    _numbers: WarehouseNumbers

    def __init__(self, request: AuditWarehouse, stop: threading.Event, numbers: WarehouseNumbers) -> None:
        self._request = request
        self._storage = open_storage(request.warehouse)
        self._loads: dict[str, Loads] = {}
        self._tables: dict[str, PublishedTable] = {}
        self._live_through: dict[str, int | None] = {}
        self._found: dict[str, findings.Findings] = {}
        self._states: dict[str, WarehouseState] = {}
        self._topics: set[str] = set()
        """Topics whose state is reported: the cluster's topics, and the folders seen in this turn."""
        self._number = 0
        """Number of the newest record of the turn."""
        self._unsent: list[bytes] = []
        """Numbered records without an acknowledgement."""
        self._beat_due = 0.0
        with ExitStack() as opened:
            self._session = Session.connect(request.zookeeper)
            opened.callback(self._session.close)
            with ClusterClient(request.bootstrap, timeout_s=_TIMEOUT_S) as client:
                self._seat = Seat(cluster_name(self._session, client), WAREHOUSE)
                taker = TurnTaker(self._session, self._seat, self._storage.root)
                super().__init__(
                    taker, numbers, stop, interval_ms=request.interval_ms, may_replace=request.new_warehouse
                )
                self.check_place()
                if not self._storage.root.startswith("file://"):
                    # Without a catalog each round would report it missing.
                    connect(self._storage, request.catalog).close()
                _ensure_topic(client)
            registry = opened.enter_context(SchemaRegistryClient(request.registry))
            self._codec = AuditCodec(registry)
            publisher = AuditPublisher(request.bootstrap, OFFLINE_AUDIT_TOPIC, timeout_s=_TIMEOUT_S)
            self._publisher = opened.enter_context(publisher)
            self._opened = opened.pop_all()

    def disconnect(self) -> None:
        self._opened.close()

    def refusal(self, newest: Turn) -> str:
        """Return the reason to refuse the turn: the auditor's counts are of another warehouse."""
        return (
            f"the auditor's warehouse is another one: {newest.host} counted {newest.cluster_id}, and this is"
            f" {self._storage.root}: give the right --warehouse, or --new-warehouse if it was moved"
        )

    def prepare(self, turn: Turn) -> None:
        """Forget the reports so far, because another process may have continued them."""
        self._loads.clear()
        self._tables.clear()
        self._live_through.clear()
        self._found.clear()
        self._states.clear()
        self._number, self._unsent = 0, []
        self._unsent.append(self._codec.encode(Heartbeat(time=NOTHING, tier=WAREHOUSE), timeout_s=_TIMEOUT_S))
        # For a topic that was loaded once and has no folder now, only the cluster's topic is left.
        with ClusterClient(self._request.bootstrap, timeout_s=_TIMEOUT_S) as client:
            self._topics = {*client.topics()}

    def count_once(self) -> None:
        """Count and report the new loads and changed hours of every topic. Log a topic that cannot be
        counted, and continue.
        """
        now = now_ms()
        topics = [name for name in self._storage.names("") if Folder.LOADS in self._storage.names(name)]
        of_loads = self._each(topics, self._count_loads)
        of_findings = self._each(topics, self._send_findings)
        of_tables: dict[str, str] = {}
        if topics:
            # Opened in each round: a local warehouse has no catalog before its first publication.
            with connect(self._storage, self._request.catalog, create=False) as catalog:
                of_tables = self._each(topics, partial(self._count_table, catalog, of_loads))
        of_live = self._each([topic for topic in topics if topic in self._tables], self._look_at_live)
        self._topics |= {*topics}
        gone = self._topics - {*topics}
        of_states = self._each(sorted(self._topics), partial(self._send_state, of_loads, of_tables, gone))
        causes = (of_loads, of_findings, of_tables, of_live, of_states)
        problems = [f"{topic}: {text}" for cause in causes for topic, text in cause.items()]
        for problem in problems:
            if problem not in self._numbers.problems:  # once for each cause
                logger.warning("%s; every round tries it again", problem)
        self._numbers.problems = problems
        if time.monotonic() >= self._beat_due:
            self._send([Heartbeat(time=now, tier=WAREHOUSE)])
            self._numbers.heartbeat_at = time.time()
            self._beat_due = time.monotonic() + IDLE_HEARTBEAT_S

    def _each(self, topics: Sequence[str], do: Callable[[str], None]) -> dict[str, str]:
        """Run `do` for each topic. Return topic -> problem for the topics that failed."""
        problems = {}
        for topic in topics:
            try:
                do(topic)
            except MillraceError as error:
                problems[topic] = str(error)
            except Exception as error:  # of a file or table broken in an unforeseen way
                line = (str(error).splitlines() or [""])[0]
                problems[topic] = f"unexpected {type(error).__name__}: {line}"
        return problems

    def _count_loads(self, topic: str) -> None:
        if topic not in self._loads:
            self._loads[topic] = Loads(Topic(self._storage, topic))
        loads = self._loads[topic]
        for manifest in loads.to_report():
            if self._stop.is_set() or self._taker.lost.is_set():
                return
            began = time.monotonic()
            found = read_back(self._storage, manifest)
            for bad in found.bad:
                logger.error("%s: it is counted as lost; run `millrace verify`", bad)
            counts = loads.accounted(manifest, found)
            self._send(loads.records(manifest, counts, found))
            loads.add_report(manifest, counts, found.unkeyed)
            path = edition_path(topic, manifest.load, manifest.edition)
            self._numbers.rows["loads"] += found.counts.total
            self._numbers.rows["erased"] += counts.total - found.counts.total
            for rows in manifest.erased:
                logger.info("%s: %d rows of %s were erased by %s", path, rows.rows, rows.hour, rows.erasure)
            took = time.monotonic() - began
            logger.info("%s: %d rows with a header, counted in %.1f s", path, found.counts.total, took)

    def _send_findings(self, topic: str) -> None:
        found = findings.read(Topic(self._storage, topic))
        if found is not None and found != self._found.get(topic):
            problems = findings.to_problems(found)
            self._send([Verified(time=now_ms(), topic=topic, number=0, problems=problems)])
            self._found[topic] = found

    def _count_table(self, catalog: Catalog, of_loads: Mapping[str, str], topic: str) -> None:
        if topic not in self._tables:
            again = self._request.count_tables_again
            self._tables[topic] = PublishedTable(Topic(self._storage, topic), again=again)
        if topic not in self._loads:
            return  # the reports of its loads are not known yet
        for found in self._tables[topic].to_report(catalog, self._loads[topic]):
            if self._stop.is_set() or self._taker.lost.is_set():
                return
            # If the table were still reported as missing, its rows would look like rows of a lost table.
            self._send_state(of_loads, {}, set(), topic)
            self._send(table_records(topic, found.snapshot, found.windows, found.counts, found.unkeyed))
            self._numbers.rows["table"] += found.counts.total
            logger.info("table of %s, %s: %d rows with a header", topic, found.hour, found.counts.total)

    def _look_at_live(self, topic: str) -> None:
        self._live_through[topic] = None
        self._live_through[topic] = self._tables[topic].live_through()

    def _send_state(
        self, of_loads: Mapping[str, str], of_tables: Mapping[str, str], gone: Set[str], topic: str
    ) -> None:
        """Report the state of a topic, at the start of a turn and whenever it has changed."""
        if self._stop.is_set() or self._taker.lost.is_set():
            return  # some of the state was not reported
        newest, editions, exists, live_through = LoadId(), "", False, None
        if topic not in gone:
            if topic not in self._loads:
                return  # its folder cannot be read, which is reported as the problem
            newest = self._loads[topic].newest()
            editions = "" if topic in of_loads else self._loads[topic].editions()
            exists = topic in self._tables and self._tables[topic].exists
            live_through = self._live_through.get(topic)
        state = WarehouseState(
            time=0,
            topic=topic,
            number=0,
            load=newest.load,
            sha256=newest.sha256,
            editions=editions,
            exists=exists,
            trouble=of_tables.get(topic, "")[:MOST_LETTERS],
            live_through=live_through,
        )
        if state != self._states.get(topic):
            self._send([replace(state, time=now_ms())])
            self._states[topic] = state

    def _send(self, records: Sequence[Numbered | LoadCount]) -> None:
        """Publish the records, and before them all records without an acknowledgement, as the same bytes.

        So the numbers of a turn have no holes: a hole is a record that the auditor has lost.
        """
        self._publish()
        number, values = self._number, []
        for record in records:
            if not isinstance(record, LoadCount):
                number += 1
                record = replace(record, number=number)
            values.append(self._codec.encode(record, timeout_s=_TIMEOUT_S))
        self._number, self._unsent = number, values
        self._publish()

    def _publish(self) -> None:
        assert self._turn is not None
        while self._unsent:  # one after the other: a retry must not bring them out of order
            self._publisher.publish(self._unsent[:1], keys=[self._turn.key(self._unsent[0])])
            del self._unsent[0]


def _ensure_topic(client: ClusterClient) -> None:
    if OFFLINE_AUDIT_TOPIC not in client.topics():
        with suppress(TopicAlreadyExists):
            client.create_topic(OFFLINE_AUDIT_TOPIC, 1, AUDIT_TOPIC_SETTINGS)
