# ruff: noqa
from __future__ import annotations

from tests.unit.audit.test_auditor import (
    Cluster,
    auditor,
    story,
    BatchHeader,
    Message,
    build_batch,
    SAID,
    COUNTED,
)
from tests.unit.audit.test_coverage import *
from tests.unit.audit.story import Story
from millrace.client.cluster_client import FetchedPartition
from millrace_audit.reports.messages import AuditCodec
from tests.unit.audit.test_messages import Ids
import millrace_audit.reader.coverage as cov


def test_40_a_batch_that_nobody_can_take_apart_stops_no_auditor(story: Story) -> None:
    cluster = Cluster()
    story.whole()
    cluster.logs[SAID][0].append(
        build_batch([Message(0, None, b"x")], attributes=1)
    )  # says gzip, is not; CRC right
    cluster.publish(story)
    auditor(story, cluster).apply_all()
    assert story.verdict() == "complete"


def test_41_nor_a_reader_that_begins() -> None:
    batch = build_batch([Message(0, None, b"x")], attributes=1)

    class Client:
        bootstrap = "x"

        def fetch(self, topic, offsets, **_):
            return {0: FetchedPartition(0, 1, 1, 0, memoryview(batch))}

    assert list(cov._records(Client(), "audit-counts", "dc1", AuditCodec(Ids()), None, 0, 1)) == []


def test_42_a_zombie_of_an_older_turn(monkeypatch) -> None:
    topic = Topic(
        [
            (3 * 3600, 4, beat((A, 0))),
            (2 * 3600, 5, beat((A, 0))),
            (2 * 3600, 5, count(A, 0, 500)),
            (MINUTE, 4, count(A, 0, 20)),
            (MINUTE, 4, beat((A, 20))),
            (0, OWN, OWN_BEAT),
        ]
    )
    assert ends(topic, A, patch=monkeypatch) == {A: 500}
