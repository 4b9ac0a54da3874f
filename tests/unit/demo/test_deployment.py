"""The deployment that the demo runs: ports of its own, and clusters that run already where they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config import from_mapping
from millrace.errors import ConfigError
from millrace_demo.run import on_free_ports
from millrace_demo.up import Deployment, Supervisor, UpConfig

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


@pytest.mark.parametrize("name", ["dc3", "offline"])
def test_only_a_datacenter_of_the_deployment_can_run_elsewhere(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--kafka {name}=.*no datacenter of that name"):
        on_free_ports(deployment(), Path("/data"), {name: "kafka:9092"})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dc1": {}}, "clusters.dc1 needs `brokers` to start, or `bootstrap`"),
        ({"dc1": {"brokers": ["a:1"], "bootstrap": "b:2"}}, "clusters.dc1 needs `brokers` to start, or"),
        (
            {"offline": {"bootstrap": "a:1", "mirror": {"origins": ["dc1"]}}},
            "clusters.offline needs `brokers`:",
        ),
    ],
)
def test_a_cluster_is_either_started_or_runs_already(
    tmp_path: Path, changed: dict[str, dict[str, object]], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Deployment(deployment(**changed), Supervisor(tmp_path))
