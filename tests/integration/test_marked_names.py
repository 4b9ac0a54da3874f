"""A marked name of a group, a client, a key and a value in all that brokers and their commands show."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from millrace.cli import cli
from tests.brokers import TestCluster, free_port
from tests.marks import FORGED, MARK, check_escaped, check_json
from tests.support import WAIT_S, Process, wait_until

TOPIC = "clicks"


@pytest.fixture
def cluster(
    start_for_module: Callable[..., Any], zookeeper: str, tmp_path: Path, free_metrics_port: int
) -> TestCluster:
    settings = (
        f'group_initial_rebalance_delay_ms = 0\nmetrics_listen = "127.0.0.1:{free_metrics_port}"\n'
        "[log]\nflush_ms = 10\n"
    )
    found = TestCluster(start_for_module, f"marked-{uuid.uuid4().hex[:8]}", tmp_path, zookeeper, settings)
    found.start_brokers(1)
    with found.client() as client:
        client.create_topic(TOPIC, 1)
    return found


@pytest.fixture
def free_metrics_port() -> int:
    return free_port()


def millrace(cluster: TestCluster, *arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--bootstrap", cluster.bootstrap])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_marked_name_is_never_shown_raw(cluster: TestCluster, free_metrics_port: int) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    producer = Producer({**settings, "client.id": MARK})
    producer.produce(TOPIC, MARK, key=MARK)
    assert producer.flush(WAIT_S) == 0
    names = {"group.id": MARK, "client.id": MARK, "group.instance.id": MARK, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", **names})
    consumer.subscribe([TOPIC])
    wait_until("a message", lambda: consumer.poll(0.1))
    consumer.commit(asynchronous=False)
    for command in (("list",), ("describe", MARK)):
        check_escaped(millrace(cluster, "groups", *command))
        check_json(millrace(cluster, "groups", *command, "--json"))
    read = ("consume", TOPIC, "--from-beginning", "--until-end")
    assert len(millrace(cluster, *read).splitlines()) == 1
    check_escaped(millrace(cluster, *read))
    check_json(millrace(cluster, *read, "--json"))

    def metrics() -> str | None:
        text = httpx.get(f"http://127.0.0.1:{free_metrics_port}/metrics").text
        return text if FORGED in text and "group_lag_bytes{" in text else None

    check_escaped(wait_until("the group's metrics", metrics) or "")
    consumer.close()
    resource = ConfigResource(ConfigResource.Type.TOPIC, MARK)
    admin = AdminClient(settings)
    (answer,) = admin.describe_configs([resource]).values()
    with pytest.raises(KafkaException, match="no topic") as refused:
        answer.result(WAIT_S)
    check_escaped(refused.value.args[0].str())
    process: Process = cluster.brokers[1].process
    assert not [line for line in process.output.split("\n") if not line.isprintable()]
