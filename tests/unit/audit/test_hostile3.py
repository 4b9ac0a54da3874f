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
