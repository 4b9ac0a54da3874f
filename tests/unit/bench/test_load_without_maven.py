"""Without Maven, a benchmark part that needs its jars is reported missing; nothing is started for it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from millrace.records.compression import Codec
from tests.bench.broker.system import Missing
from tests.bench.load import loading, mirroring, ways
from tests.bench.load.loading import Origin
from tests.bench.load.messages import stream
from tests.bench.load.servers import Broker, Servers
from tests.peers import maven


@pytest.fixture(autouse=True)
def no_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No `mvn`, and nothing fetched earlier."""
    monkeypatch.setattr(maven, "CACHE", tmp_path / "peers")
    monkeypatch.setattr(maven, "available", lambda: False)


def test_a_way_that_needs_jars_is_missing_and_the_others_are_not(tmp_path: Path) -> None:
    origin = Origin(broker=Broker(address="127.0.0.1:1", pid=1), registry="", rows_by_hour={})
    told: list[str] = []

    here = [dataclasses.replace(way, python=Path(sys.executable)) for way in ways.WAYS]
    pairs = [(way, origin) for way in here if way.jars]
    found = loading.measure(pairs, tmp_path, told.append, rounds=1)

    assert all("install it" in outcome["missing"] for outcome in found.values())
    poms = ["spark-kafka.pom.xml", "spark-iceberg.pom.xml", "spark-kafka.pom.xml"]
    assert [line.partition(" needs Maven")[0].split(maxsplit=1)[1] for line in told] == [
        f"MISSING: {pom}" for pom in poms
    ]
    without_jars = [way.name for way in here if not way.jars and ways.confs(way)]
    assert without_jars == ["millrace", "millrace-table", "millrace-local"]


def test_mirrormaker_and_apache_kafka_are_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"connect.pom.xml needs Maven: install it"):
        mirroring.by_mirrormaker(tmp_path, stream(500, 1, Codec.NONE))
    with Servers(tmp_path) as servers, pytest.raises(Missing, match=r"kafka.pom.xml needs Maven"):
        servers.kafka("origin")
