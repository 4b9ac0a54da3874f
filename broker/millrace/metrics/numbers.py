"""Every number of a broker, under its Prometheus name, read where it is counted when somebody asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from millrace import __version__
from millrace.broker.broker import Broker, Partition
from millrace.errors import ErrorCode
from millrace.groups.coordinator import Groups
from millrace.histogram import Histogram
from millrace.metrics.lag import GroupOffsets
from millrace.mirror.states import MirrorStates, State
from millrace.server.loop import Server
from millrace.server.request import OTHER_API
from millrace.wire.messages import ApiKey

PREFIX = "millrace_broker_"
_PLACE = ("topic", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(Collector):
    """What is read: one collector for all, called in the thread of whoever asks."""

    broker: Broker
    server: Server
    groups: Groups
    offsets: GroupOffsets
    mirrors: MirrorStates

    def collect(self) -> Iterator[Metric]:
        """Every metric, as of now."""
        config = self.broker.config
        yield InfoMetricFamily(
            PREFIX.rstrip("_"),
            "Which broker this is.",
            {"broker": str(config.broker_id), "cluster": config.cluster, "version": __version__},
        )
        yield from self._connections()
        yield from self._requests()
        yield from self._topics()
        yield from self._logs()
        yield from self._mirrors()
        yield from self._groups()

    def _connections(self) -> Iterator[Metric]:
        admission, budget = self.server.admission, self.server.budget
        yield _counter("connections_accepted", "Connections that clients opened.", admission.accepted)
        yield _counter("connections_refused", "Of them, closed at once by a limit.", admission.refused)
        closed = [(("idle",), admission.closed_idle), (("buffered_bytes",), admission.closed_greedy)]
        yield _counters("connections_closed", "Closed later by a limit.", ("limit",), closed)
        yield _gauge("connections", "Connections open now.", admission.open)
        yield _gauge("buffered_bytes", "Bytes of unfinished requests and unread answers.", budget.held)
        yield _gauge("waiting_requests", "Requests without an answer.", budget.waiting)
        connected = self.broker.cluster.session.client.connected
        yield _gauge("zookeeper_connected", "1 while ZooKeeper can be reached.", int(connected))

    def _requests(self) -> Iterator[Metric]:
        apis = [(_api(key), api) for key, api in sorted(self.server.statistics.apis.items()) if api.requests]
        yield _counters(
            "requests", "Requests, by API.", ("api",), [((name,), api.requests) for name, api in apis]
        )
        errors = sorted(self.server.errors.copy().items())
        yield _counters(
            "request_errors",
            "Errors in answers, by API and code; a request about several partitions may have several.",
            ("api", "error"),
            [((_api(key), _error(code)), count) for (key, code), count in errors],
        )
        yield _histograms(
            "request_seconds",
            "From reading a request to its answer, of a sample of them; waiting for records is part of it.",
            ("api",),
            [((name,), api.latency) for name, api in apis],
        )
        yield _histograms("flush_seconds", "How long flushes took.", (), [((), self.broker.flushes.seconds)])

    def _topics(self) -> Iterator[Metric]:
        topics: dict[str, list[Partition]] = defaultdict(list)
        for partition in self._partitions():
            topics[partition.topic].append(partition)

        def sums(name: str, text: str, count: Callable[[Partition], int]) -> Metric:
            found = [((topic,), sum(map(count, partitions))) for topic, partitions in topics.items()]
            return _counters(name, text, ("topic",), found)

        yield sums("topic_bytes_in", "Bytes appended.", lambda each: each.log.end - each.opened_end)
        yield sums("topic_batches_in", "Batches that producers sent.", lambda each: each.batches_in)
        yield sums("topic_messages_in", "Messages appended.", lambda each: each.log.counts[1])
        yield sums("topic_bytes_out", "Bytes of batches handed to consumers.", lambda each: each.bytes_out)
        yield sums("topic_reads_out", "Answers to fetches that carried them.", lambda each: each.reads_out)

    def _logs(self) -> Iterator[Metric]:
        partitions = [((each.topic, str(each.number)), each.log) for each in self._partitions()]
        yield _gauges(
            "log_size_bytes",
            "Bytes of a partition's log.",
            _PLACE,
            [(place, log.size) for place, log in partitions],
        )
        yield _gauges(
            "log_segments",
            "Files of a partition's log.",
            _PLACE,
            [(place, log.counts[0]) for place, log in partitions],
        )
        yield _gauges(
            "log_high_watermark",
            "Offset behind the last message consumers see.",
            _PLACE,
            [(place, log.high_watermark) for place, log in partitions],
        )
        failed = [(place, 1) for place, log in partitions if log.refusal is not None]
        failed += [((topic, str(number)), 1) for topic, number in self.broker.failed]
        yield _gauges(
            "log_failed",
            "1 for a log that takes no writes until the broker restarts; else absent.",
            _PLACE,
            failed,
        )

    def _mirrors(self) -> Iterator[Metric]:
        lags, states = [], []
        for (topic, number), mirror in self.mirrors.all().items():
            labels = (mirror.origin.cluster, topic, str(number))
            states += [((*labels, str(state)), int(mirror.state is state)) for state in State]
            partition = self.broker.partitions.get((topic, number))
            position = partition.log.snapshot[0].mirror if partition is not None else None
            if mirror.high_watermark >= 0:
                done = position.cursor.next_offset if position is not None else 0
                lags.append((labels, max(0, mirror.high_watermark - done)))
        names = ("origin", *_PLACE)
        yield _gauges("mirror_state", "1 for what a mirror does now.", (*names, "state"), states)
        yield _gauges(
            "mirror_lag",
            "Offsets of the origin (bytes, or messages of Apache Kafka) not copied yet.",
            names,
            lags,
        )

        copied = sorted(self.mirrors.copied.copy().items())
        for name, text in (("batches", "Batches"), ("records", "Messages"), ("bytes", "Bytes of batches")):
            counts = [((origin,), getattr(each, name)) for origin, each in copied]
            yield _counters(
                f"mirror_{name}", f"{text} copied from an origin and visible.", ("origin",), counts
            )
        yield _histograms(
            "mirror_latency_seconds",
            "Of each append of a mirror: from the timestamp of its first batch to when consumers see it.",
            ("origin",),
            [((origin,), each.latency) for origin, each in copied],
        )

    def _groups(self) -> Iterator[Metric]:
        groups = self.groups.describe()
        yield _gauges(
            "group_members",
            "Members of a group coordinated here.",
            ("group", "state"),
            [((group.name, str(group.state)), len(group.members)) for group in groups],
        )
        yield _gauges(
            "group_generation",
            "How often the group has been balanced.",
            ("group",),
            [((group.name,), group.generation) for group in groups],
        )
        lags = []
        for (group, place), offset in self.offsets.committed().items():
            partition = self.broker.partitions.get(place)
            if partition is not None:
                lag = max(0, partition.log.high_watermark - offset)
                lags.append(((group, place[0], str(place[1])), lag))
        yield _gauges(
            "group_lag_bytes",
            "Bytes behind a group's committed offset, of partitions led here.",
            ("group", *_PLACE),
            lags,
        )

    def _partitions(self) -> list[Partition]:
        return list(self.broker.partitions.values())


Values = Iterable[tuple[Sequence[str], float]]


def _counters(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for value_labels, value in values:
        family.add_metric(value_labels, value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return _counters(name, text, (), [((), value)])


def _gauges(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for value_labels, value in values:
        family.add_metric(value_labels, value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return _gauges(name, text, (), [((), value)])


def _histograms(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for value_labels, histogram in values:
        buckets = [
            ("+Inf" if bound == float("inf") else str(bound), n) for bound, n in histogram.cumulative()
        ]
        family.add_metric(value_labels, buckets, histogram.total)
    return family


def _api(key: int) -> str:
    return "unknown" if key == OTHER_API else ApiKey(key).name.lower()


def _error(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
