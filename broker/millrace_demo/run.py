"""The demo from end to end: start, publish, run the DAG, compare, report.

Every step uses the same tools as a user: the supervised processes of `millrace up`, the producer, the DAG
through Airflow, the auditor's answer. Only the proof at the end reads loads and tables by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from rich.console import Console

from millrace import config as settings
from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.transactions import batches_from
from millrace.config import ClientSecurity
from millrace.deployment_file import ClusterConfig, UpConfig
from millrace.errors import ConfigError, MillraceError
from millrace.process import start_child
from millrace.security.client import of_process, password
from millrace.security.folder import SecurityFolder
from millrace_audit.answer import Completeness, Verdict
from millrace_audit.client import completeness
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC
from millrace_audit.reports.ranges import merged
from millrace_demo.fresh import TOPIC as FRESH_TOPIC
from millrace_demo.fresh import resident_loader, rows_once_shown
from millrace_demo.proof import Finding, Proof, Published, compare, loaded_files
from millrace_demo.publish import (
    Producers,
    Span,
    publish_access_log,
    publish_made_events,
    register_schemas,
    span_of_log,
    write_json_schemas,
)
from millrace_demo.report import Hour, hours_of, print_hours
from millrace_demo.table import metadata_location, rows_by_duckdb, rows_by_hour
from millrace_demo.up import Deployment, Endpoints, Supervisor, audit_topics

FETCH_BYTES = 4 << 20
END_S, END_TRIES = 60.0, 3
"""Time (s) in which Airflow must end its jobs and itself, and the number of signals in that time."""
BATCH_TOPIC = "SearchQuery"
"""The topic of `deploy/local.toml` that a task of the DAG mirrors."""
WAIT_MINUTES = 3.0
"""Minutes for which the DAG waits for complete hours; one minute is plenty on an idle machine."""
WAIT_MINUTES_WITH_FAULT = 0.5
"""The same with an injected fault: then the hours are never complete."""
FRESH_S, FRESH_S_WITH_FAULT = 60.0, 5.0
"""Time in seconds in which branch `live` must have every event; with an injected fault it never has."""
JUDGED_S = 60.0
"""Time in which the auditor must judge the complete windows again with the counts of the tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `millrace demo`."""

    events: int
    hours: int
    access_log: Path | None
    fault: str | None
    kafka: Mapping[str, str]
    """Bootstrap addresses of running Kafka clusters that replace started clusters, by cluster name."""
    deployment: Path
    dags: Path
    schemas: Path
    scratch: Path
    replicas: int
    """Replicas of each partition. With 2 or more, each cluster loses a broker and its disk
    during the demo."""
    secure: bool
    """True for TLS and logins, whatever the deployment's file says."""
    java_services: Path | None
    """Folder of the jars of Java services, which then send the events, as JSON; None: Python sends Avro."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of the last line, and the reasons if the demo failed."""

    proof: Proof
    mirrored: int
    hours: Sequence[Hour]
    failures: Sequence[str]

    def __str__(self) -> str:
        proof, complete = self.proof, sum(hour.complete for hour in self.hours)
        figures = (
            f"published={proof.published} mirrored={self.mirrored} loaded={proof.loaded}"
            f" lost={proof.count('lost')} duplicated={proof.count('duplicated')}"
            f" hours_complete={complete}/{len(self.hours)}"
        )
        return (
            f"DEMO FAILED: {figures}; {'; '.join(self.failures)}" if self.failures else f"DEMO OK: {figures}"
        )


def run_demo(options: DemoOptions, console: Console) -> Outcome:
    """Run the whole path once in `options.scratch`. Raise MillraceError when a step is impossible."""
    began = time.monotonic()

    def print_step(step: str) -> None:
        console.print(f"{time.monotonic() - began:6.1f} s  {step}", highlight=False, markup=False)

    print_step("starting everything")
    with _running_deployment(options) as (endpoints, supervisor):
        print_step(f"up: {', '.join(endpoints.bootstraps)}, registry, auditor, ZooKeeper")
        if options.java_services is not None:
            schemas = write_json_schemas(options.schemas, options.scratch / "schemas")
            options = replace(options, schemas=schemas)
        register_schemas(endpoints, options.schemas)

        def halfway() -> None:
            if options.replicas > 1:
                lost = _destroy_brokers(options, endpoints, supervisor)
                print_step(f"killed for good, with their disks: the brokers {', '.join(lost)}")

        with resident_loader(endpoints, options.scratch, _message_format(options)):
            published, span = _publish(options, endpoints, console, halfway)
            topics = sorted({entry.topic for entry in published})
            events = sum(entry.count for entry in published)
            print_step(f"published {events:,} events of {' and '.join(topics)}")
            stale = _print_fresh_rows(options, published, print_step)
        print_step("running the DAG warehouse_load through Airflow")
        dag_failure = _run_dag(options, endpoints, topics, span, print_step)
        print_step("the DAG failed" if dag_failure else "the DAG succeeded")
        answers = answers_of(endpoints.auditor_url, topics, span, 0 if dag_failure else JUDGED_S)
        mirrored = sum(_count_records(endpoints, topic) for topic in topics)
        print_step(f"read {mirrored:,} messages back from the aggregate cluster")

    print_step("stopped all processes")
    warehouse = options.scratch / "warehouse"
    proof = compare(published, {topic: loaded_files(warehouse / topic) for topic in topics})
    print_step(f"compared {proof.published:,} acknowledged messages with {proof.loaded:,} rows")
    tables = {topic: metadata_location(warehouse, topic) for topic in topics}
    rows = {topic: rows_by_hour(table) if table else {} for topic, table in tables.items()}
    hours = hours_of(answers, rows)
    print_hours(hours, console)
    failures = [*_failures(proof, answers, hours, mirrored, dag_failure), *stale]
    for topic, table in tables.items():
        counted, expected = rows_by_duckdb(table) if table else None, sum(rows[topic].values())
        if counted is not None:
            print_step(f"DuckDB counts {counted:,} rows in the table of {topic}")
        if counted not in (None, expected):
            failures.append(f"DuckDB counts {counted} rows in the table of {topic}, pyiceberg {expected}")
    if options.fault and not failures:
        failures = [f"the fault {options.fault!r} was not noticed: see logs/{endpoints.aggregate}-1.log"]
    return Outcome(proof=proof, mirrored=mirrored, hours=hours, failures=failures)


def answers_of(auditor: str, topics: Sequence[str], span: Span, within_s: float) -> list[Completeness]:
    """Return the auditor's answer for each topic, once no window is pending or after `within_s`."""
    end = time.monotonic() + within_s
    while True:
        answers = [completeness(auditor, topic, *span) for topic in topics]
        is_judged = all(w.verdict != Verdict.PENDING for answer in answers for w in answer.windows)
        if is_judged or time.monotonic() >= end:
            return answers
        time.sleep(0.2)


def _destroy_brokers(options: DemoOptions, endpoints: Endpoints, supervisor: Supervisor) -> list[str]:
    """Kill the first broker of each cluster started here and delete its log; return the brokers' names."""
    lost = [f"{name}-1" for name in endpoints.bootstraps if name not in options.kafka]
    for broker in lost:
        supervisor.lose(broker)
        shutil.rmtree(options.scratch / broker)
    return lost


def _publish(
    options: DemoOptions, endpoints: Endpoints, console: Console, halfway: Callable[[], None]
) -> tuple[list[Published], Span]:
    """Publish the log or generated events; return the acknowledged events and their whole hours."""
    producers = Producers(endpoints, options.scratch, options.java_services)
    if options.access_log is not None:
        span = span_of_log(options.access_log)
        return publish_access_log(options.access_log, producers, console, halfway), span
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    span = (end - timedelta(hours=options.hours), end)
    return publish_made_events(options.events, span, producers, console, halfway), span


def _print_fresh_rows(
    options: DemoOptions, published: Sequence[Published], print_step: Callable[[str], None]
) -> list[str]:
    """Print how soon branch `live` had every event. Return the failure if it has not, without a fault."""
    expected = sum(entry.count for entry in published if entry.topic == FRESH_TOPIC)
    within_s = FRESH_S_WITH_FAULT if options.fault else FRESH_S
    rows, reader, took = rows_once_shown(options.scratch / "warehouse", expected, within_s)
    when = f"{took:.1f} s after the last event"
    print_step(f"branch live of {FRESH_TOPIC}: {rows:,} rows, not proven yet, {when} ({reader})")
    if rows == expected or options.fault:
        return []
    return [f"branch live of {FRESH_TOPIC} has {rows} rows of {expected}"]


def _failures(
    proof: Proof,
    answers: Sequence[Completeness],
    hours: Sequence[Hour],
    mirrored: int,
    dag_failure: str | None,
) -> list[str]:
    """Return every finding of the proof and of the audit.

    If there are none, the first other reason for a failure.
    """
    failures = [*map(str, proof.findings), *_audit_findings(answers)]
    unfinished = [f"{hour.topic} {hour.audited.start:%Y-%m-%dT%H}" for hour in hours if not hour.complete]
    if not failures and dag_failure:
        failures.append(dag_failure)
    if not failures and mirrored != proof.published:
        failures.append(f"the aggregate cluster has {mirrored} messages of {proof.published}")
    if not failures and unfinished:
        failures.append(f"not complete: {', '.join(unfinished)}")
    if not hours or proof.published == 0:
        failures.append("nothing was published")
    return failures


def _audit_findings(answers: Sequence[Completeness]) -> list[str]:
    """Return the auditor's findings, one line for each kind, tier and instance."""
    by_instance: dict[tuple[str, str, str, int, str], list[Sequence[int]]] = {}
    for answer in answers:
        for window in answer.windows:
            for item in window.findings:
                key = (item.kind, item.tier, item.server, item.instance, answer.topic)
                by_instance.setdefault(key, []).extend(item.sequences)
    return [
        f"audit at tier {tier}: {Finding(kind, topic, server, instance, list(merged(sequences)))}"
        for (kind, tier, server, instance, topic), sequences in by_instance.items()
    ]


@contextmanager
def _running_deployment(options: DemoOptions) -> Iterator[tuple[Endpoints, Supervisor]]:
    """Run the deployment on free ports in the scratch folder; it is stopped in any case."""
    config = on_free_ports(settings.load(UpConfig, options.deployment), options.scratch, options.kafka)
    if options.replicas > 1:
        config = replace(config, clusters=with_replicas(config.clusters, options.replicas))
    if options.fault and any(cluster.mirror and cluster.bootstrap for cluster in config.clusters.values()):
        raise ConfigError("--fault needs Millrace's own offline brokers: omit --kafka for their cluster")
    faulty = (sys.executable, "-m", "millrace_demo.faulty_broker", options.fault) if options.fault else ()
    if options.secure and not config.security:
        config = replace(config, security=str(options.scratch / "security"))
    if options.java_services is not None and (config.security or of_process().protocol != "PLAINTEXT"):
        raise ConfigError(
            "--java-services uses neither TLS nor logins: omit --secure, MILLRACE_CLIENT and the deployment's"
            " `security`"
        )
    security = None
    if config.security:
        folder = SecurityFolder(Path(config.security))
        folder.make()
        security = folder.client("admin")
    supervisor = Supervisor(options.scratch / "logs", is_private=bool(config.security))
    try:
        for name in options.kafka:
            _prepare(config.clusters[name], name, security)
        yield Deployment(config, supervisor, faulty).start(), supervisor
        supervisor.check()
    finally:
        supervisor.stop()


def _prepare(cluster: ClusterConfig, name: str, security: ClientSecurity | None) -> None:
    """Create the topics that a running cluster lacks. Raise MillraceError when a topic holds messages."""
    with ClusterClient(cluster.bootstrap, security=security) as client:
        existing = client.topics()
        for topic, partitions in cluster.topics.items():
            if topic not in existing:
                # Apache Kafka's retention uses the events' own times, and a log file's events may be years
                # old.
                client.create_topic(topic, partitions, {"retention.ms": "-1"})
        copies = (AUDIT_TOPIC, COUNTS_TOPIC) if cluster.mirror is not None else ()
        topics = (*cluster.topics, *audit_topics(cluster), *copies)
        for topic in existing.keys() & topics:
            if client.list_offsets(topic, EARLIEST) != client.list_offsets(topic, LATEST):
                raise MillraceError(
                    f"topic {topic} of {name} at {cluster.bootstrap} holds messages already, and the demo"
                    " compares all messages with those that it publishes: name another cluster, or delete the"
                    f" topics {', '.join(topics)} there first"
                )


def on_free_ports(config: UpConfig, data_dir: Path, kafka: Mapping[str, str]) -> UpConfig:
    """Return the same deployment on free ports, in another folder, with final verdicts as soon as possible.

    Clusters named in `kafka` run already: they are not started, and are reached at the addresses in `kafka`.
    """
    if unknown := kafka.keys() - config.clusters.keys():
        raise ConfigError(f"--kafka {min(unknown)}=...: the deployment has no cluster of that name")
    clusters = {
        name: replace(cluster, brokers=["127.0.0.1:0" for _ in cluster.brokers], metrics=())
        if name not in kafka
        else replace(_filled_by_process(cluster, config), brokers=(), metrics=(), bootstrap=kafka[name])
        for name, cluster in config.clusters.items()
    }
    return replace(
        config,
        data_dir=str(data_dir),
        warehouse=str(data_dir / "warehouse"),
        zookeeper="127.0.0.1:0",
        registry="127.0.0.1:0",
        auditor="127.0.0.1:0",
        grace_s=0,
        clusters=clusters,
    )


def with_replicas(clusters: Mapping[str, ClusterConfig], replicas: int) -> dict[str, ClusterConfig]:
    """Return the clusters; started clusters get `replicas` replicas and at least as many brokers."""
    return {
        name: replace(
            cluster,
            replicas=replicas,
            brokers=[*cluster.brokers, *["127.0.0.1:0"] * (replicas - len(cluster.brokers))],
        )
        if cluster.brokers
        else cluster
        for name, cluster in clusters.items()
    }


def _filled_by_process(cluster: ClusterConfig, config: UpConfig) -> ClusterConfig:
    """Return the cluster without a batch mirror.

    An aggregate cluster gets a partition for each partition of its origins.
    """
    if (mirror := cluster.mirror) is None:
        return cluster
    mirrored = replace(mirror, topics=[*mirror.topics, *mirror.batch_topics], batch_topics=())
    if mirror.by_mirrormaker:  # it creates what it fills
        return replace(cluster, topics={}, mirror=mirrored)
    partitions: Counter[str] = Counter()
    for origin in mirror.origins:
        partitions.update(config.clusters[origin].topics)
    return replace(cluster, topics=partitions, mirror=mirrored)


def _run_dag(
    options: DemoOptions,
    endpoints: Endpoints,
    topics: Sequence[str],
    span: Span,
    print_step: Callable[[str], None],
) -> str | None:
    """Run the DAG once through Airflow, printing each task's end; return the reason if it failed."""
    log, last = options.scratch / "logs" / "airflow.log", ""
    with log.open("w") as errors, _airflow(options, endpoints, topics, span, errors) as airflow:
        assert airflow.stdout is not None
        try:
            for line in airflow.stdout:
                last = line.rstrip()
                print_step(f"  {last}")
        except BaseException:
            _end(airflow)
            raise
    if airflow.returncode == 0:
        return None
    return last or f"Airflow ended with exit code {airflow.returncode}: see {log}"


def _airflow(
    options: DemoOptions, endpoints: Endpoints, topics: Sequence[str], span: Span, errors: IO[str]
) -> subprocess.Popen[str]:
    """Start one run of the DAG, a process that ends with this one and prints a line for each task."""
    command = [sys.executable, "-m", "millrace_demo.run_once", "warehouse_load"]
    command += ["--dags-folder", str(options.dags), "--airflow-home", str(options.scratch / "airflow")]
    command += ["--start", span[0].isoformat(), "--end", span[1].isoformat()]
    wait_minutes = WAIT_MINUTES_WITH_FAULT if options.fault else WAIT_MINUTES
    # The mirror process of an Apache Kafka copies every topic; brokers leave BATCH_TOPIC to a task.
    by_task = None if endpoints.aggregate in options.kafka else BATCH_TOPIC
    file = options.scratch / "topics.toml"
    message_format = _message_format(options)
    file.write_text(
        "".join(
            f'[{topic}]\nmirror = {str(topic == by_task).lower()}\nformat = "{message_format}"\n'
            for topic in topics
        )
    )
    environment = {
        **os.environ,
        "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(_connection(options, endpoints)),
        "MILLRACE_TOPICS_FILE": str(file),
        "MILLRACE_SCHEMAS": str(options.schemas.resolve()),
        "MILLRACE_WAIT_MINUTES": str(wait_minutes),
    }
    return start_child(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)


def _end(airflow: subprocess.Popen[str]) -> None:
    """Let Airflow end its jobs, then itself.

    A task that begins may swallow the signal, so the signal is sent again.
    """
    for _ in range(END_TRIES):
        airflow.terminate()
        with suppress(subprocess.TimeoutExpired):
            airflow.wait(END_S / END_TRIES)
            return
    airflow.kill()


def _message_format(options: DemoOptions) -> str:
    return "avro" if options.java_services is None else "json"


def _connection(options: DemoOptions, endpoints: Endpoints) -> Mapping[str, object]:
    client, login, secured = endpoints.client("loads"), {}, {}
    if client is not None:
        login = {"login": client.user, "password": password(client)}
        secured = {"protocol": client.protocol, "ca": client.ca}
    return {
        "conn_type": "millrace",
        **login,
        "host": endpoints.bootstraps[endpoints.aggregate],
        "extra": {
            "registry": endpoints.registry_url,
            "auditor": endpoints.auditor_url,
            "warehouse": str(options.scratch / "warehouse"),
            "origins": dict(endpoints.origins),
            "spark_master": "local[2]",
            **secured,
        },
    }


def _count_records(endpoints: Endpoints, topic: str) -> int:
    """Count a topic's messages in the aggregate cluster by reading every batch, without control batches."""
    total, bootstrap = 0, endpoints.bootstraps[endpoints.aggregate]
    with ClusterClient(bootstrap, security=endpoints.client("consumer")) as client:
        ends = client.list_offsets(topic, LATEST)
        offsets = client.list_offsets(topic, EARLIEST)
        while pending := {p: offset for p, offset in offsets.items() if offset < ends[p]}:
            answer = client.fetch(topic, pending, max_bytes=FETCH_BYTES, max_wait_ms=500)
            for partition, fetched in answer.items():
                name = f"{topic}-{partition}"
                for header, _, readable in batches_from(fetched, pending[partition], name):
                    offsets[partition] = header.next_offset
                    total += header.records_count if readable else 0
    return total
