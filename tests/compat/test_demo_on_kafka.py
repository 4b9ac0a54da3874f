"""The whole pipeline with Apache Kafka as both datacenters: published there, proved in the warehouse."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.peers.kafka import KafkaBroker
from tests.peers.mirrormaker import MirrorMaker, properties_of
from tests.support import REPOSITORY, run_millrace

EVENTS = 10_000


LOCAL = REPOSITORY / "deploy" / "local.toml"


def demo(*options: str, deployment: Path = LOCAL) -> subprocess.CompletedProcess[str]:
    paths = [f"--{name}={REPOSITORY / name}" for name in ("dags", "schemas")]
    return run_millrace("demo", f"--deployment={deployment}", *paths, *options, timeout_s=400)


@pytest.fixture(scope="module")
def kafkas(needs_maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The options that name two clusters of Apache Kafka as the datacenters."""
    folder = tmp_path_factory.mktemp("demo-kafka")
    with KafkaBroker(folder / "dc1") as dc1, KafkaBroker(folder / "dc2") as dc2:
        yield [f"--kafka=dc1={dc1.address}", f"--kafka=dc2={dc2.address}"]


def test_nothing_is_lost_or_repeated_from_kafka_to_the_hourly_table(
    kafkas: list[str], tmp_path: Path
) -> None:
    done = demo("--events", str(EVENTS), "--hours", "2", "--keep", str(tmp_path), *kafkas)
    output = done.stdout + done.stderr
    counted = f"published={EVENTS} mirrored={EVENTS} loaded={EVENTS} lost=0 duplicated=0 hours_complete=4/4"
    assert done.stdout.splitlines()[-1] == f"DEMO OK: {counted}", output
    assert done.returncode == 0
    # No broker of ours stood in for a datacenter.
    assert sorted(log.name for log in (tmp_path / "logs").glob("dc*")) == ["dc1-reader.log", "dc2-reader.log"]

    again = demo("--events", "10", *kafkas)
    assert again.returncode == 1
    assert "holds messages already" in again.stdout.splitlines()[-1]


def test_apache_kafka_is_every_cluster_the_aggregate_too(needs_maven: None, tmp_path: Path) -> None:
    keep = tmp_path / "demo"
    with ExitStack() as opened:
        kafkas = [
            f"--kafka={name}={opened.enter_context(KafkaBroker(tmp_path / name)).address}"
            for name in ("dc1", "dc2", "offline")
        ]
        done = demo("--events", str(EVENTS), "--hours", "2", "--keep", str(keep), *kafkas)
    output = done.stdout + done.stderr
    counted = f"published={EVENTS} mirrored={EVENTS} loaded={EVENTS} lost=0 duplicated=0 hours_complete=4/4"
    assert done.stdout.splitlines()[-1] == f"DEMO OK: {counted}", output
    assert done.returncode == 0
    ours = sorted(log.name for log in (keep / "logs").glob("*") if log.name.startswith(("dc", "offline")))
    assert ours == ["dc1-reader.log", "dc2-reader.log", "offline-mirror.log", "offline-reader.log"]


def test_a_company_s_own_mirrormaker_2_copies_between_three_kafkas(needs_maven: None, tmp_path: Path) -> None:
    keep, deployment = tmp_path / "demo", tmp_path / "mirrormaker.toml"
    deployment.write_text(LOCAL.read_text() + "by_mirrormaker = true\n")  # of [clusters.offline.mirror]
    with ExitStack() as opened:
        at = {
            name: opened.enter_context(KafkaBroker(tmp_path / name)).address
            for name in ("dc1", "dc2", "offline")
        }
        origins = {name: at[name] for name in ("dc1", "dc2")}
        properties = properties_of(origins, at["offline"], "PageView|SearchQuery")
        opened.enter_context(MirrorMaker(tmp_path / "mm2", "offline", properties))
        kafkas = [f"--kafka={name}={address}" for name, address in at.items()]
        options = ("--events", str(EVENTS), "--hours", "2", "--keep", str(keep))
        done = demo(*options, *kafkas, deployment=deployment)
    output = done.stdout + done.stderr
    counted = f"published={EVENTS} mirrored={EVENTS} loaded={EVENTS} lost=0 duplicated=0 hours_complete=4/4"
    assert done.stdout.splitlines()[-1] == f"DEMO OK: {counted}", output
    assert done.returncode == 0
    ours = sorted(log.name for log in (keep / "logs").glob("*") if log.name.startswith(("dc", "offline")))
    assert ours == ["dc1-reader.log", "dc2-reader.log", "offline-reader.log"], "nothing of ours copied"
