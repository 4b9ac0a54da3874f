"""The deployment that the demo runs: ports of its own, and clusters that run already where they are named."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.config import from_mapping
from millrace.deployment_file import UpConfig
from millrace.errors import ConfigError, MillraceError
from millrace_demo.run import on_free_ports, with_replicas
from millrace_demo.up import Deployment, Supervisor

CLUSTERS = {
    "dc1": {"brokers": ["127.0.0.1:9192", "127.0.0.1:9193"], "topics": {"PageView": 2}},
    "dc2": {"brokers": ["127.0.0.1:9292"]},
    "offline": {"brokers": ["127.0.0.1:9392"], "mirror": {"origins": ["dc1", "dc2"]}},
}


def deployment(**changed: dict[str, object]) -> UpConfig:
    return from_mapping(UpConfig, {"clusters": {**CLUSTERS, **changed}}, "test")


def test_a_named_cluster_is_found_where_it_runs_and_the_others_are_started_on_free_ports() -> None:
    config = on_free_ports(deployment(), Path("/data"), {"dc1": "kafka:9092"})
    assert (list(config.clusters["dc1"].brokers), config.clusters["dc1"].bootstrap) == ([], "kafka:9092")
    assert config.clusters["dc1"].topics == {"PageView": 2}
    assert config.clusters["dc2"].brokers == ["127.0.0.1:0"]
    assert config.clusters["dc2"].bootstrap == ""


def test_only_a_cluster_of_the_deployment_can_run_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"--kafka dc3=.*no cluster of that name"):
        on_free_ports(deployment(), Path("/data"), {"dc3": "kafka:9092"})


def test_an_aggregate_cluster_elsewhere_has_a_partition_for_each_of_its_origins_and_no_batch_mirror() -> None:
    mirror = {"origins": ["dc1", "dc2"], "topics": ["*"], "batch_topics": ["B"]}
    datacenter: dict[str, object] = {"brokers": ["h:1"], "topics": {"A": 1, "B": 2}}
    config = deployment(dc1=datacenter, dc2=datacenter, offline={"brokers": ["h:2"], "mirror": mirror})
    offline = on_free_ports(config, Path("/data"), {"offline": "kafka:9092"}).clusters["offline"]
    assert (offline.bootstrap, [*offline.brokers]) == ("kafka:9092", [])
    assert offline.topics == {"A": 2, "B": 4}
    assert offline.mirror is not None
    assert ([*offline.mirror.topics], [*offline.mirror.batch_topics]) == (["*", "B"], [])


def test_with_replicas_a_cluster_gets_the_brokers_that_it_lacks_unless_it_runs_already() -> None:
    clusters = with_replicas(deployment(dc2={"bootstrap": "kafka:9092"}).clusters, 3)
    assert {name: (cluster.replicas, len(cluster.brokers)) for name, cluster in clusters.items()} == {
        "dc1": (3, 3),
        "dc2": (1, 0),
        "offline": (3, 3),
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dc2": {"brokers": ["a:1"], "replicas": 2}}, "clusters.dc2.replicas = 2 needs as many `brokers`"),
        ({"dc1": {}}, "clusters.dc1 needs either `brokers` to start or the `bootstrap`"),
        ({"dc1": {"brokers": ["a:1"], "bootstrap": "b:2"}}, "clusters.dc1 needs either `brokers`"),
        (
            {"offline": {"bootstrap": "a:1", "mirror": {"origins": ["dc1"], "batch_topics": ["A"]}}},
            "clusters.offline.mirror.batch_topics: .* Millrace brokers only",
        ),
    ],
)
def test_a_cluster_is_either_started_or_runs_already(
    tmp_path: Path, changed: dict[str, dict[str, object]], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Deployment(deployment(**changed), Supervisor(tmp_path))


def test_a_deployment_that_runs_already_is_named_by_its_process(tmp_path: Path) -> None:
    with (tmp_path / "process").open("w") as running:
        running.write("4711")
        running.flush()
        fcntl.flock(running, fcntl.LOCK_EX)
        second = Deployment(replace(deployment(), data_dir=str(tmp_path)), Supervisor(tmp_path / "logs"))
        with pytest.raises(MillraceError, match="runs already, as process 4711: use it, or give another"):
            second.start()
    assert not (tmp_path / "zookeeper").exists(), "nothing was started"
