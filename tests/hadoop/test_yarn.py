"""Loads on a real YARN and HDFS with Kerberos: the driver beside the command, and on the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace_spark.jobs.yarn import Yarn
from millrace_warehouse.commands import execute
from millrace_warehouse.requests import Erase
from millrace_warehouse.storage.gss import NoTicket
from tests.hadoop.conftest import USER, environment, identity
from tests.packed_environment import pack
from tests.remote_warehouse import CATALOG, nothing
from tests.support import Process, run_millrace, wait_until

if TYPE_CHECKING:
    from tests.hadoop.yarn_world import YarnWarehouse, YarnWorld

pytest_plugins = ["tests.hadoop.yarn_world"]
EVENTS = 2_000


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_everything_that_a_warehouse_can_do_it_does_on_yarn(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse, mode: str
) -> None:
    topic = yarn_warehouse.site.topic(f"On-yarn-{mode}", 2)
    options = yarn_world.yarn.cluster_mode if mode == "cluster" else yarn_world.yarn.options
    before = len(yarn_world.yarn.applications())
    yarn_warehouse.produce(topic, EVENTS)
    (loaded,) = yarn_warehouse.run(*yarn_warehouse.command("load", topic), *options)
    assert (loaded["load"], loaded["rows"], loaded["rejected"]) == (1, EVENTS, 0)
    again = yarn_warehouse.run(*yarn_warehouse.again(topic, 1), *options)
    assert [(each["edition"], each["rows"]) for each in again["loads"]] == [(2, EVENTS)]
    applications = yarn_world.yarn.applications()[before:]
    assert [(app["state"], app["finalStatus"]) for app in applications] == [("FINISHED", "SUCCEEDED")] * 2
    assert {app["user"] for app in applications} == {USER}
    yarn_warehouse.check(topic)
    yarn_warehouse.compact(topic)
    yarn_warehouse.check_table(topic)
    where = "header.sequence = 7"
    request = Erase(topic=topic, warehouse=yarn_warehouse.uri, where=where, reason="a test", catalog=CATALOG)
    assert execute.erase(request, nothing)["rows"] == 1
    assert yarn_warehouse.verify(topic).problems == []
    assert yarn_warehouse.rows(topic).total() == EVENTS - 1


@pytest.mark.parametrize(("mode", "of_spark"), [("client", True), ("client", False), ("cluster", False)])
def test_a_keytab_is_enough_for_spark_and_for_millrace(
    yarn_world: YarnWorld,
    yarn_warehouse: YarnWarehouse,
    keytab: Path,
    tmp_path: Path,
    mode: str,
    of_spark: bool,
) -> None:
    topic = yarn_warehouse.site.topic(f"Keytab-{mode}-{of_spark}", 2)
    options = yarn_world.yarn.cluster_mode if mode == "cluster" else yarn_world.yarn.options
    settings = {"spark.kerberos.keytab": keytab, "spark.kerberos.principal": USER} if of_spark else {}
    login = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    yarn_warehouse.produce(topic, EVENTS)
    with environment(identity(keytab, tmp_path / "another.cache")):
        yarn_warehouse.run(*yarn_warehouse.command("load", topic), *options, *login)
    yarn_warehouse.check(topic)


def test_a_resource_manager_that_asks_for_a_ticket_gets_it_or_the_command_says_how_to_get_one(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse, tmp_path: Path
) -> None:
    topic = yarn_warehouse.site.topic("Without-a-ticket", 1)
    with environment(identity(None, tmp_path / "none")):
        with pytest.raises(NoTicket, match="run kinit"):
            Yarn([]).state("millrace-1")
        refused = run_millrace(*yarn_warehouse.command("load", topic), *yarn_world.yarn.options)
    assert refused.returncode == 1
    assert "run kinit, or set KRB5_CLIENT_KTNAME to a keytab" in refused.stderr
    assert Yarn([]).state("millrace-1").word == "UNKNOWN"


@pytest.fixture(scope="module")
def packed_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packed"))


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_packed_environment_runs_the_tasks_and_the_driver_on_the_cluster(
    yarn_world: YarnWorld, yarn_warehouse: YarnWarehouse, packed_environment: Path, mode: str
) -> None:
    topic = yarn_warehouse.site.topic(f"Packed-{mode}", 2)
    options = yarn_world.yarn.cluster_mode if mode == "cluster" else yarn_world.yarn.options
    yarn_warehouse.produce(topic, EVENTS)
    archive = ["--archives", f"{packed_environment}#environment"]
    command = Process([*yarn_warehouse.command("load", topic), *options, *archive])
    # In client mode, this process runs below the executor.
    wait_until(
        "the environment's Python runs",
        lambda: yarn_world.yarn.containers(b"./environment/bin/python") or not command.running,
        timeout_s=300,
    )
    assert command.wait(timeout_s=600) == 0, command.output
    yarn_warehouse.check(topic)
