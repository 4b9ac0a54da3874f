"""One HDFS, one cluster of brokers and one Spark session for the whole run; and its last line.

HDFS OK: ran=N skipped=0        nothing for a run that failed: pytest's own words and exit code stand

Without Maven there is no HDFS to run: one line says so, and the exit code is 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.conftest import Start
from tests.last_line import LastLine
from tests.peers import maven
from tests.peers.hdfs import Hdfs, site_xml
from tests.remote_warehouse import warehouse_on_hdfs
from tests.warehouses import TestSite

DATANODES = 3
REPLICATION = 2
NAMESERVICE = "events"


_last_line = LastLine("HDFS")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Three DataNodes, two replicas; HADOOP_CONF_DIR names it, for this process and all it starts."""
    with Hdfs(
        tmp_path_factory.mktemp("hdfs"),
        datanodes=DATANODES,
        replication=REPLICATION,
        settings={"dfs.namenode.acls.enabled": "true", "dfs.namenode.fs-limits.min-block-size": "4096"},
    ) as running:
        conf = tmp_path_factory.mktemp("hadoop-conf")
        (conf / "core-site.xml").write_text(site_xml({"fs.defaultFS": running.uri}))
        (conf / "hdfs-site.xml").write_text(site_xml(client_settings(running)))
        before = os.environ.get("HADOOP_CONF_DIR")
        os.environ["HADOOP_CONF_DIR"] = str(conf)
        yield running
        if before is None:
            del os.environ["HADOOP_CONF_DIR"]
        else:
            os.environ["HADOOP_CONF_DIR"] = before


def client_settings(hdfs: Hdfs) -> dict[str, str]:
    """Return settings of an HDFS client: replicas, and a nameservice whose other NameNode does not run."""
    prefix, web = (f"dfs.namenode.{kind}-address.{NAMESERVICE}" for kind in ("rpc", "http"))
    return {
        "dfs.replication": str(REPLICATION),
        "dfs.nameservices": NAMESERVICE,
        f"dfs.ha.namenodes.{NAMESERVICE}": "gone,running",
        f"{prefix}.gone": "127.0.0.1:9",
        f"{prefix}.running": hdfs.address,
        f"{web}.gone": "127.0.0.1:9",
        f"{web}.running": hdfs.namenode.web,
    }


@pytest.fixture(scope="session")
def site(zookeeper: str, start_for_run: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    """Two brokers and a registry."""
    folder = tmp_path_factory.mktemp("site")
    return TestSite.start(start_for_run, f"offline-{uuid4().hex[:6]}", folder, zookeeper, brokers=2)


warehouse = warehouse_on_hdfs


def pytest_sessionstart() -> None:
    """End a run that could only fail."""
    if not maven.available():
        pytest.exit(
            "HDFS comes from Maven Central, and Maven is not installed: install it (Debian: apt-get install"
            " maven), then run again",
            returncode=1,
        )
