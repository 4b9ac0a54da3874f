"""The numbers of a broker, under their Prometheus names. Each scrape reads them from the parts that count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from prometheus_client import core
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from millrace import __version__
from millrace.errors import ErrorCode
from millrace.records.topic_partition import TopicPartition
from millrace.service.exposition import LargeMetric
from millrace.wire.messages import ApiKey
from millrace_broker.groups.coordinator import Groups
from millrace_broker.histogram import Histogram
from millrace_broker.metrics.lag import GroupOffsets
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.partition import Partition
from millrace_broker.security.quotas import KEYS
from millrace_broker.server.loop import Server
from millrace_broker.server.request import OTHER_API
from millrace_broker.server.statistics import MAX_VERSION

PREFIX = "millrace_broker_"
_PARTITION = ("topic", "partition")

_COUNTER, _GAUGE, _HISTOGRAM = core.CounterMetricFamily, core.GaugeMetricFamily, core.HistogramMetricFamily
Declaration: TypeAlias = tuple[Callable[..., Any], str, Sequence[str]]
"""Kind, help and names of the labels of a metric."""
METRICS: dict[str, Declaration] = {
    "connections_accepted": (_COUNTER, "Connections that clients opened.", ()),
    "connections_refused": (_COUNTER, "Connections closed at once by a limit.", ()),
    "connections_closed": (_COUNTER, "Connections closed later by a limit.", ("limit",)),
    "tls_failures": (
        _COUNTER,
        "Connections closed because TLS failed or no rule matches the certificate.",
        (),
    ),
    "login_failures": (_COUNTER, "Logins that failed, by mechanism.", ("mechanism",)),
    "rights_refused": (_COUNTER, "Requests refused because a right is missing, by API.", ("api",)),
    "throttled_seconds": (_COUNTER, "Seconds for which clients were throttled by a quota.", ("quota",)),
    "certificate_expires_seconds": (
        _GAUGE,
        "Expiry of the certificate of new connections, in seconds since 1970.",
        (),
    ),
    "requests": (_COUNTER, "Requests, by API and version.", ("api", "version")),
    "request_errors": (
        _COUNTER,
        "Errors in answers, by API and code; a request about several partitions may have several.",
        ("api", "error"),
    ),
    "topic_bytes_in": (_COUNTER, "Bytes appended.", ("topic",)),
    "topic_batches_in": (_COUNTER, "Batches that producers sent.", ("topic",)),
    "topic_messages_in": (_COUNTER, "Messages appended.", ("topic",)),
    "topic_bytes_out": (_COUNTER, "Bytes of batches sent to consumers.", ("topic",)),
    "topic_reads_out": (_COUNTER, "Answers to fetches that carried batches.", ("topic",)),
    "connections": (_GAUGE, "Connections open now.", ()),
    "buffered_bytes": (_GAUGE, "Bytes held for clients; a request without an answer counts 4 KiB.", ()),
    "waiting_requests": (_GAUGE, "Requests without an answer.", ()),
    "zookeeper_connected": (_GAUGE, "1 while ZooKeeper can be reached.", ()),
    "clock_difference_seconds": (_GAUGE, "Seconds by which the clock is ahead of ZooKeeper's.", ()),
    "log_size_bytes": (_GAUGE, "Bytes of a partition's log.", _PARTITION),
    "log_segments": (_GAUGE, "Files of a partition's log.", _PARTITION),
    "log_high_watermark": (_GAUGE, "Offset after the last message that consumers see.", _PARTITION),
    "log_failed": (
        _GAUGE,
        "1 for a log that takes no writes until the broker restarts; else absent.",
        _PARTITION,
    ),
    "replicas": (
        _GAUGE,
        "Partitions with several replicas stored here, by the role of this replica.",
        ("role",),
    ),
    "under_replicated": (_GAUGE, "Partitions led here of which not all replicas are in sync.", ()),
    "under_min_isr": (_GAUGE, "Partitions led here with too few replicas in sync to commit.", ()),
    "leaderless": (_GAUGE, "Partitions of the whole cluster that no live broker leads.", ()),
    "replica_lag_bytes": (
        _GAUGE,
        "Bytes of partitions led here that a follower has not confirmed to be on its disk.",
        ("follower",),
    ),
    "moving_bytes": (_GAUGE, "Bytes of replica lag that reassignments wait for.", ()),
    "replica_events": (
        _COUNTER,
        "Won and unclean elections here, replicas that became in sync or out of sync, cut logs.",
        ("event",),
    ),
    "group_members": (_GAUGE, "Members of a group coordinated here.", ("group", "state")),
    "group_generation": (_GAUGE, "Generation of the group: the number of its rebalances.", ("group",)),
    "group_lag_bytes": (
        _GAUGE,
        "Bytes after a group's committed offset, of partitions led here.",
        ("group", *_PARTITION),
    ),
    "request_seconds": (
        _HISTOGRAM,
        "Time from reading a request to its answer, of a sample; it includes the wait for records.",
        ("api",),
    ),
    "flush_seconds": (_HISTOGRAM, "Duration of flushes.", ()),
}
"""The broker's metrics by name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers(Collector):
    """One collector for all numbers, called in the thread that serves the scrape."""

    broker: Broker
    server: Server
    groups: Groups
    offsets: GroupOffsets
    guests: Sequence[Collector] = ()

    def collect(self) -> Iterator[Metric]:
        config = self.broker.config
        yield core.InfoMetricFamily(
            PREFIX.rstrip("_"),
            "Identity of this broker.",
            {"broker": str(config.broker_id), "cluster": config.cluster, "version": __version__},
        )
        yield from self._connections()
        yield from self._security()
        yield from self._requests()
        partitions = self.broker.partitions
        yield from _topics(partitions.values())
        yield from self._logs(partitions.values())
        yield from self._replicas()
        yield from self._groups(partitions)
        for guest in self.guests:
            yield from guest.collect()

    def _connections(self) -> Iterator[Metric]:
        admission = self.server.admission
        yield _metric("connections_accepted", admission.accepted)
        yield _metric("connections_refused", admission.refused)
        closed = {
            ("idle",): admission.closed_idle,
            ("buffered_bytes",): admission.closed_over_limit,
            ("unauthenticated",): admission.closed_unauthenticated,
            ("login_ended",): admission.closed_login_ended,
        }
        yield metrics_of("connections_closed", closed.items())
        yield _metric("connections", admission.open)
        yield _metric("buffered_bytes", admission.held)
        yield _metric("waiting_requests", self.server.waiting_requests)
        yield _metric("zookeeper_connected", int(self.broker.cluster.session.client.connected))
        yield _metric("clock_difference_seconds", self.broker.clock_check.difference_s)

    def _security(self) -> Iterator[Metric]:
        listeners = self.server.listeners
        logins: Counter[str] = Counter()
        for listener in listeners:
            logins.update(dict.fromkeys(listener.mechanisms, 0))
            logins.update(listener.failed_logins.copy())
        guard = next((listener.guard for listener in listeners if listener.guard is not None), None)
        refusals = [] if guard is None else sorted(guard.journal.refusals.copy().items())
        throttled = (
            [] if guard is None else [((key,), guard.meters.throttled_s[kind]) for key, kind in KEYS.items()]
        )
        expiries = [at for listener in listeners if (at := listener.certificate_expires) is not None]
        yield _metric("tls_failures", self.server.admission.failed_tls)
        yield metrics_of("login_failures", [((name,), count) for name, count in sorted(logins.items())])
        yield metrics_of("rights_refused", [((api.lower(),), count) for api, count in refusals])
        yield metrics_of("throttled_seconds", throttled)
        yield metrics_of("certificate_expires_seconds", [((), at) for at in expiries[:1]])

    def _requests(self) -> Iterator[Metric]:
        apis = [
            ((_api(key),), api)
            for key, api in sorted(self.server.statistics.apis.items())
            if any(api.requests)
        ]
        yield metrics_of(
            "requests",
            [
                ((*name, _version(version)), count)
                for name, api in apis
                for version, count in enumerate(api.requests)
                if count
            ],
        )
        errors = sorted(self.server.errors.copy().items())
        yield metrics_of("request_errors", [((_api(key), _error(code)), n) for (key, code), n in errors])
        yield metrics_of("request_seconds", [(name, api.latency) for name, api in apis])
        yield _metric("flush_seconds", self.broker.flushes.seconds)

    def _logs(self, partitions: Collection[Partition]) -> Iterator[Metric]:
        logs = [(f'partition="{led.number}",topic="{led.topic}"', led.log) for led in partitions]
        yield _large("log_size_bytes", [(labels, log.size) for labels, log in logs])
        yield _large("log_segments", [(labels, log.counts[0]) for labels, log in logs])
        yield _large("log_high_watermark", [(labels, log.high_watermark) for labels, log in logs])
        failed = {(led.topic, str(led.number)): 1 for led in partitions if led.log.refusal is not None}
        failed |= {(topic, str(number)): 1 for topic, number in self.broker.failed}
        yield metrics_of("log_failed", failed.items())

    def _replicas(self) -> Iterator[Metric]:
        numbers = self.broker.replicas.numbers()
        yield metrics_of("replicas", [((role,), count) for role, count in numbers.roles.items()])
        yield _metric("under_replicated", numbers.under_replicated)
        yield _metric("under_min_isr", numbers.under_min_isr)
        cluster = self.broker.cluster
        states = [state for topic in cluster.topics.values() for state in topic.partitions.values()]
        yield _metric("leaderless", sum(state.leader not in cluster.brokers for state in states))
        lags = [((str(follower),), lag) for follower, lag in sorted(numbers.lags.items())]
        yield metrics_of("replica_lag_bytes", lags)
        yield _metric("moving_bytes", numbers.moving_bytes)
        yield metrics_of("replica_events", [((event,), count) for event, count in numbers.events.items()])

    def _groups(self, partitions: Mapping[TopicPartition, Partition]) -> Iterator[Metric]:
        groups = self.groups.coordinated()
        yield metrics_of("group_members", [((g.name, str(g.state)), len(g.members)) for g in groups])
        yield metrics_of("group_generation", [((group.name,), group.generation) for group in groups])
        lags = [
            ((group, topic, str(number)), max(0, partitions[topic, number].log.high_watermark - offset))
            for (group, (topic, number)), offset in self.offsets.committed().items()
            if (topic, number) in partitions
        ]
        yield metrics_of("group_lag_bytes", lags)


def _topics(partitions: Iterable[Partition]) -> Iterator[Metric]:
    sums: dict[str, list[int]] = {}
    for partition in partitions:
        if (of_topic := sums.get(partition.topic)) is None:
            of_topic = sums[partition.topic] = [0] * 5
        log = partition.log
        of_topic[0] += log.end - partition.opened_end
        of_topic[1] += partition.batches_in
        of_topic[2] += log.counts[1]
        of_topic[3] += partition.bytes_out
        of_topic[4] += partition.reads_out
    labelled = [(f'topic="{topic}"', of_topic) for topic, of_topic in sums.items()]
    names = ("bytes_in", "batches_in", "messages_in", "bytes_out", "reads_out")
    for index, name in enumerate(names):
        yield _large(f"topic_{name}", [(labels, of_topic[index]) for labels, of_topic in labelled])


def _large(name: str, values: Iterable[tuple[str, int]]) -> Metric:
    """Return one metric of `METRICS` with values of many topics, whose names need no escaping."""
    kind, text, _ = METRICS[name]
    return LargeMetric(PREFIX + name, text, "counter" if kind is _COUNTER else "gauge", values)


def _metric(name: str, value: float | Histogram) -> Metric:
    return metrics_of(name, [((), value)])


def metrics_of(name: str, values: Iterable[tuple[Sequence[str], float | Histogram]]) -> Metric:
    """Return one metric of `METRICS` with a value for each combination of its labels."""
    return metrics_by(METRICS, name, values)


def metrics_by(
    table: Mapping[str, Declaration], name: str, values: Iterable[tuple[Sequence[str], float | Histogram]]
) -> Metric:
    """Return one metric of a table such as `METRICS` with a value for each combination of its labels."""
    kind, text, labels = table[name]
    family = kind(PREFIX + name, text, labels=labels)
    for label_values, value in values:
        samples = (_buckets(value), value.total) if isinstance(value, Histogram) else (value,)
        family.add_metric(label_values, *samples)
    metric: Metric = family
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    return [("+Inf" if bound == float("inf") else str(bound), n) for bound, n in histogram.cumulative()]


def _api(key: int) -> str:
    return "unknown" if key == OTHER_API else ApiKey(key).name.lower()


def _version(version: int) -> str:
    return str(version) if version <= MAX_VERSION else "higher"


def _error(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
