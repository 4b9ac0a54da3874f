"""One YARN and its HDFS, both with Kerberos, for tests of loads on YARN, and warehouses on that HDFS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from tests.hadoop.conftest import USER, environment, give_folders, identity
from tests.peers.hdfs import Hdfs
from tests.peers.kdc import Kdc
from tests.peers.secured import Security
from tests.peers.yarn import Yarn
from tests.remote_warehouse import RemoteWarehouse, use_catalog
from tests.support import Process, run_millrace, wait_until
from tests.warehouses import TestSite

COMMAND_S = 600.0


class YarnWarehouse(RemoteWarehouse):
    """A warehouse that commands load on YARN; no Spark runs in the test's own process."""

    def run(self, *words: str, env: dict[str, str] | None = None) -> Any:
        """The answer of a command, which must succeed."""
        done = run_millrace(*words, timeout_s=COMMAND_S, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def again(self, topic: str, load: int) -> list[str]:
        """`millrace reload` of a load."""
        places = ["--bootstrap", self.site.cluster.bootstrap, "--registry", self.site.registry, "--json"]
        reason = ["--loads", str(load), "--reason", "a test", "--warehouse", self.uri]
        return ["reload", topic, *reason, *places]

    def hour_options(self, topic: str) -> list[str]:
        """Every hour of the topic as options of `publish`."""
        hours = [option for hour in sorted(self.hours(topic)) for option in ("--hour", f"{hour}:00Z")]
        return [*hours, "--unasked"]

    def check(self, topic: str, loads: int = 1) -> None:
        """Publish. Loads and table hold every message once, in that many loads, and no run is claimed."""
        self.run(*self.command("publish", topic, *self.hour_options(topic)))
        self.check_table(topic)
        manifests = [name for name in self.storage.names(f"{topic}/loads") if name.endswith(".json")]
        assert len([name for name in manifests if name[0].isdigit()]) == loads
        assert not [file for file in self.storage.files(".drivers") if file.path.endswith(".claim")]


@dataclass
class YarnWorld:
    """Servers and folders that the tests on YARN share."""

    hdfs: Hdfs
    yarn: Yarn
    site: TestSite

    def warehouse(self) -> YarnWarehouse:
        """A new warehouse."""
        return YarnWarehouse(self.site, cast(Any, None), f"{self.hdfs.uri}/warehouses/{uuid4().hex[:8]}")

    def tagged(self, run: Process) -> dict[str, Any]:
        """The application of a run's driver, once the command has submitted it."""
        wait_until("the driver is submitted", lambda: "is submitted" in run.output, timeout_s=COMMAND_S)
        tag = run.output.partition("driver millrace-")[2].split()[0]
        (found,) = (app for app in self.yarn.applications() if f"millrace-{tag}" in app["applicationTags"])
        return found

    def state(self, application: dict[str, Any]) -> str:
        """State and final state of an application, now."""
        (found,) = (app for app in self.yarn.applications() if app["id"] == application["id"])
        return f"{found['state']} {found['finalStatus']}"


@pytest.fixture(scope="session")
def yarn_world(
    kdc: Kdc, security: Security, site: TestSite, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[YarnWorld]:
    """HDFS with one DataNode, and YARN with one NodeManager, of the same realm.

    Tokens of this HDFS live for a day: a ResourceManager renews them shortly before their end, which on a
    busy machine is too late for those that live for seconds.
    """
    folder = tmp_path_factory.mktemp("yarn-world")
    superuser = identity(security.keytab, folder / "superuser.cache")
    with (
        environment({**superuser, "MILLRACE_HDFS_CA": str(security.ca)}),
        Hdfs(folder / "hdfs", security=security) as hdfs,
        Yarn(folder / "yarn", hdfs.uri, recovery=True, security=security, hdfs=hdfs.settings) as yarn,
    ):
        with environment({"HADOOP_CONF_DIR": str(yarn.conf)}):
            give_folders(hdfs, "/warehouses", f"/user/{USER}")
        yield YarnWorld(hdfs, yarn, site)


@pytest.fixture
def yarn_warehouse(
    yarn_world: YarnWorld,
    kdc: Kdc,
    keytab: Path,
    security: Security,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[YarnWarehouse]:
    """A warehouse of the test's own, and a ticket. Afterwards everything runs again that was killed."""
    use_catalog(monkeypatch, {"uri": f"sqlite:///{tmp_path}/catalog.db"})
    kdc.ticket(keytab, USER, tmp_path / "cache")
    variables = {"HADOOP_CONF_DIR": str(yarn_world.yarn.conf), "MILLRACE_HDFS_CA": str(security.ca)}
    with environment({**identity(None, tmp_path / "cache"), **variables}):
        yield yarn_world.warehouse()
        yarn_world.yarn.start()
