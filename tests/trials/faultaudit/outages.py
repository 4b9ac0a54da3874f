"""Long outages, and an auditor that begins anew: nothing is lost, and each outage is reported meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

from millrace_audit.answer import Verdict
from millrace_audit.auditor.judging.topic_facts import STALE_MS
from millrace_audit.reports.messages import OFFLINE
from millrace_commands.broker_admin import count_moving, move_replicas
from tests.support import WAIT_S, run_millrace, wait_until
from tests.trials.faultaudit.row import HOME, Row
from tests.trials.faultaudit.stage import Says, Stage

WELL = Says(verdict=Verdict.COMPLETE)
_PENDING = Says(verdict=Verdict.PENDING, beside=Verdict.PENDING)


def rows() -> Iterator[Row]:
    yield Row(name="mirror-down", what="the mirror stands while messages come", plant=_mirror_down, says=WELL)
    yield Row(
        name="reader-down",
        what="the reader of a datacenter is away for more than a minute",
        plant=_reader_down,
        says=WELL,
    )
    yield Row(
        name="broker-gone",
        what="a broker of a datacenter is gone for good with its disk, and two others have copies",
        plant=_broker_gone,
        says=WELL,
    )
    yield Row(
        name="auditor-down",
        what="the auditor is away while messages come and are loaded",
        plant=_auditor_down,
        says=replace(WELL, sentence="no auditor answers"),
    )
    yield Row(
        name="database-deleted",
        what="the auditor's database is deleted: it says again what it said of a fault",
        plant=_database_deleted,
        mirror="drop",
        says=Says(findings=[("missing", OFFLINE, "10-19")]),
    )


def _mirror_down(stage: Stage) -> None:
    with stage.held():
        stage.traffic()
        stage.await_says(
            replace(_PENDING, reason=rf"holds nothing of topic \S+ from {HOME}|on its way from {HOME}")
        )
    stage.load()


def _reader_down(stage: Stage) -> None:
    unknown = Says(verdict=Verdict.UNKNOWN, beside=Verdict.UNKNOWN, reason=f"the reader of {HOME} is stale")
    with stage.without(f"{HOME}-reader"):
        stage.traffic()
        stage.await_says(unknown, WAIT_S + STALE_MS / 1000)
    stage.load()


def _broker_gone(stage: Stage) -> None:
    cluster, partition = stage.place.clusters[HOME], (stage.topic, 0)
    cluster.start_brokers(2, 3)

    def move(*replicas: int) -> None:
        with cluster.client() as client:
            move_replicas(client, {partition: replicas})
            wait_until(f"{replicas} have it", lambda: count_moving(client, [partition]) == 0)

    def is_led_by(broker: int) -> bool:
        with cluster.client() as client:
            return client.topic(stage.topic).partitions[0] == broker

    move(2, 3)
    move(2, 3, 1)
    wait_until("broker 2 leads", lambda: is_led_by(2))
    with stage.held():
        stage.begin(batches=2)
        cluster.brokers[2].kill()
        shutil.rmtree(cluster.folder / f"{HOME}-2")
        stage.go_on(2)
        stage.end()
    stage.load()
    move(1)  # as it was before, for the rows behind
    cluster.brokers[3].process.stop()
    for broker in (2, 3):
        del cluster.brokers[broker]


def _auditor_down(stage: Stage) -> None:
    with stage.without("auditor"):
        stage.traffic()
        stage.await_in_copy(5)
        stage.place.load(stage.topic)
        asked = run_millrace("audit", "--bad", stage.topic, "--auditor", stage.place.auditor_url)
        assert asked.returncode == 1, asked.stdout
        stage.sentence = asked.stderr


def _database_deleted(stage: Stage) -> None:
    with stage.held():
        stage.begin()
    stage.await_copied()
    stage.end()
    stage.load()
    stage.await_says(Says(findings=[("missing", OFFLINE, "10-19")]))
    with stage.without("auditor"):
        for file in stage.place.folder.glob(f"{stage.place.database.name}*"):
            file.unlink()
