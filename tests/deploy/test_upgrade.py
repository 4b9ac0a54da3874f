"""The version before on a real ZooKeeper and disk, then this one: all is still there, and everything goes on.

The version before is the wheel of the last tag. Without a tag it is the last commit that changed what a
broker writes into ZooKeeper.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.errors import InvalidReplicationFactor
from millrace_broker.coordination.cluster import Cluster
from millrace_commands.broker_admin import count_moving, move_replicas
from tests.brokers import TestCluster, free_port
from tests.conftest import Start
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traffic import PLAIN, NumberedProducer, Reader, run_until_stored
from tests.support import REPOSITORY, run_millrace, wait_until

BEFORE_THE_FIRST_TAG = "17a689c"
SCHEMA = {"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]}


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, check=False, timeout=60)


@pytest.fixture
def version_before(tmp_path: Path) -> dict[str, str]:
    """The environment in which `python -m millrace.cli` is the version before, from its wheel."""
    tag = git("describe", "--tags", "--abbrev=0")
    revision = tag.stdout.decode().strip() or BEFORE_THE_FIRST_TAG
    archive = git("archive", revision)
    if archive.returncode != 0:
        pytest.skip(f"needs revision {revision}, which this clone has not: git fetch --unshallow")
    source, folder = tmp_path / "source", tmp_path / "before"
    source.mkdir()
    subprocess.run(["tar", "--extract", "--directory", str(source)], input=archive.stdout, check=True)
    words = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source))
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(folder)
    return {"PYTHONPATH": str(folder)}


def post(url: str, body: object) -> dict[str, int]:
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        found: dict[str, int] = json.loads(answer.read())
    return found


def test_this_version_goes_on_with_what_the_version_before_has_written(
    version_before: dict[str, str], start: Start, zookeeper: str, tmp_path: Path
) -> None:
    file, database = tmp_path / "broker.toml", f"sqlite:///{tmp_path}/registry.db"
    file.write_text(
        f'broker_id = 1\ncluster = "upgraded"\nzookeeper = "{zookeeper}"\nlog_dir = "{tmp_path}/log"\n'
        f'listen = "127.0.0.1:{free_port()}"\n'
    )
    code = "import millrace; print(millrace.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **version_before},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(version_before["PYTHONPATH"])
    old = start("broker", str(file), env=version_before)
    address = old.ready()
    old_registry = start(
        "registry", "--listen", "127.0.0.1:0", "--database-url", database, env=version_before
    )
    schema = {"schema": json.dumps(SCHEMA)}
    number = post(f"http://{old_registry.ready()}/subjects/Click/versions", schema)["id"]
    bootstrap = ("--bootstrap", address)
    assert (
        run_millrace(
            "topics", "create", "Click", "--partitions", "2", *bootstrap, env=version_before
        ).returncode
        == 0
    )
    first = [str(n) for n in range(1000)]
    sent = run_millrace("produce", "Click", *bootstrap, stdin="\n".join(first) + "\n", env=version_before)
    assert sent.returncode == 0, sent.stderr
    assert old.stop() == 0
    assert old_registry.stop() == 0

    new = start("broker", str(file))
    wait_until("the broker of this version", lambda: new.ready() == address)
    registry = start("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    assert post(f"http://{registry.ready()}/subjects/Click/versions", schema)["id"] == number
    more = run_millrace("produce", "Click", *bootstrap, stdin="1000\n")
    assert more.returncode == 0, more.stderr
    read = run_millrace("consume", "Click", "--from-beginning", "--until-end", *bootstrap)
    assert sorted(read.stdout.split(), key=int) == [*first, "1000"]
    new.kill()
    again = start("broker", str(file))
    assert again.ready() == address
    read = run_millrace("consume", "Click", "--from-beginning", "--until-end", *bootstrap)
    assert sorted(read.stdout.split(), key=int) == [*first, "1000"]


def test_brokers_are_upgraded_one_by_one_under_traffic_and_copy_once_all_are(
    version_before: dict[str, str], start: Start, zookeeper: str, tmp_path: Path
) -> None:
    numbers = (1, 2, 3)
    cluster = TestCluster(partial(start, env=version_before), "rolling", tmp_path, zookeeper)
    cluster.start_brokers(*numbers)
    create = ("topics", "create", "traffic", "--partitions", "3", "--bootstrap", cluster.bootstrap)
    created = run_millrace(*create, env=version_before)
    assert created.returncode == 0, created.stderr
    ledger = Ledger("traffic")
    producers = [NumberedProducer(cluster.bootstrap, ledger, PLAIN, 3)]
    everywhere = {("traffic", number): numbers[number:] + numbers[:number] for number in range(3)}
    with (
        cluster.client() as client,
        Cluster.connect(zookeeper, "rolling", create=False) as seen,
        Reader(cluster.bootstrap, ledger, 3) as reader,
    ):
        cluster.start = start
        for broker in numbers:
            run_until_stored(producers, 100)
            assert cluster.brokers[broker].process.stop() == 0
            cluster.restart(broker)
            run_until_stored(producers, 100)
            if broker < numbers[-1]:
                with ClusterClient(cluster.brokers[1].address, timeout_s=20) as newest:
                    refused = pytest.raises(InvalidReplicationFactor, match=f"upgrade broker {broker + 1}")
                    with refused:
                        newest.create_topic("copied", 1, replicas=2)
                    with refused:
                        move_replicas(newest, everywhere)
        ledger.check(client, range(3), "all brokers are of this version")
        move_replicas(client, everywhere)
        wait_until("all have three replicas", lambda: count_moving(client, everywhere) == 0)
        states = [state for _, state in sorted(seen.topics["traffic"].partitions.items())]
        assert [state.replicas for state in states] == list(everywhere.values())
        assert all(len(state.isr) == 3 for state in states)
        run_until_stored(producers, 100)
        cluster.brokers[2].kill()
        shutil.rmtree(tmp_path / "rolling-2")
        run_until_stored(producers, 100)
        for producer in producers:
            producer.finish()
        found = ledger.check(client, range(3), "a broker is gone with its disk")
        for number in range(3):
            producers[0].check(number, found[number])
            reader.wait_for(number, found[number])
        assert not reader.problems
