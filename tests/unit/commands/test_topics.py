"""Output of `millrace topics describe` for a cluster's answers, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from millrace.client.cluster_client import TopicMetadata
from millrace.client.metadata import Copies
from millrace.errors import MillraceError, TopicAuthorizationFailed
from millrace.wire.admin_messages import ConfigSource, DescribedConfig
from millrace_commands import topics as command
from millrace_commands.groups import group_positions


class Answers:
    """A client of a cluster that mirrors a topic; partition 1 has lost its leader."""

    cluster_id = "millrace-1"

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic(self, name: str) -> TopicMetadata:
        copies = {0: Copies(7, (3, 4), (3, 4)), 1: Copies(9, (4, 3, 5), (4,))}
        return TopicMetadata(name, UUID(int=5), {0: 3, 1: -1}, copies)

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        if partitions is None or 1 in partitions:
            raise MillraceError("PageView-1 has no leader (gave up after 10 s)")
        return {0: 100 if timestamp == -2 else 900}

    def fetch(self, topic: str, offsets: dict[int, int], **_: object) -> None:
        raise TopicAuthorizationFailed(f"no right to read {topic}")


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [
        ("flush.ms", "7", ConfigSource.TOPIC),
        ("segment.bytes", "4096", ConfigSource.STATIC_BROKER),
        ("retention.ms", "1", ConfigSource.DEFAULT),
        ("elsewhere", None, 2),
        ("mirror.origins", "0=dc1/Page=View-3,1=dc2/PageView-0", ConfigSource.TOPIC),
    ]
    told = tuple(DescribedConfig(name=n, value=v, config_source=s) for n, v, s in settings)
    monkeypatch.setattr(command, "ClusterClient", Answers)
    monkeypatch.setattr(command, "topic_settings", lambda client, topic: told)
    monkeypatch.setattr(command, "partition_sizes", lambda client, topic, leaders: {0: 1234})
    monkeypatch.setattr(command, "eligible_replicas", lambda client, topic: {0: (), 1: (5,)})


def describe(*arguments: str) -> str:
    done = CliRunner().invoke(command.topics, ["describe", "PageView", *arguments])
    assert done.exception is None, done.exception
    return done.stdout


def test_a_mirrored_topic_shows_where_each_partition_comes_from() -> None:
    table = describe()
    assert "origin" in table
    row = next(line for line in table.splitlines() if "dc1" in line)
    assert row.split() == ["0", "3", "7", "3,4", "3,4", "100", "900", "1,234", "dc1/Page=View-3"]
    assert "mirror.origins" not in table, "the column says it"


def test_scripts_get_the_same_as_json() -> None:
    found: dict[str, Any] = json.loads(describe("--json"))
    assert found["partitions"] == [
        {
            "partition": 0,
            "leader": 3,
            "leader_epoch": 7,
            "replicas": [3, 4],
            "in_sync": [3, 4],
            "eligible": [],
            "start": 100,
            "high_watermark": 900,
            "bytes": 1234,
            "origin": "dc1/Page=View-3",
        },
        {
            "partition": 1,
            "leader": -1,
            "leader_epoch": 9,
            "replicas": [4, 3, 5],
            "in_sync": [4],
            "eligible": [5],
            "start": -1,
            "high_watermark": -1,
            "bytes": -1,
            "origin": "dc2/PageView-0",
        },
    ]
    told = {item["name"]: (item["value"], item["source"]) for item in found["settings"]}
    assert told == {
        "flush.ms": ("7", "topic"),
        "segment.bytes": ("4096", "broker"),
        "retention.ms": ("1", "default"),
        "elsewhere": (None, "cluster"),
    }


def test_a_group_is_described_though_one_partition_may_not_be_read_and_one_has_no_leader() -> None:
    client: Any = Answers()
    rows = group_positions(client, {("PageView", 0): 300, ("PageView", 1): 7}, {})
    assert [(row.committed, row.high_watermark, row.lag_bytes, row.lag_messages) for row in rows] == [
        (300, 900, 600, None),
        (7, None, None, None),
    ]
