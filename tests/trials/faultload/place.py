"""Everything a fault load runs on, as real processes on loopback addresses: brokers, registry, Spark.

Spark's settings are in a folder that SPARK_CONF_DIR names, so that every driver has them, whoever started it:
speculation as eager as it can be, many tries of a task, an event log to count what happened.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from millrace_broker.coordination.cluster import Cluster
from tests.peers.kdc import Kdc
from tests.peers.secured import Security
from tests.peers.spark_cluster import CONF, SparkCluster
from tests.peers.yarn import Yarn
from tests.support import START_S, Process, wait_until
from tests.warehouses import TestSite

BROKERS = REPLICAS = 3
USER = "millrace"
"""Principal of this process on a YARN with Kerberos."""
WORKERS = 2
CORES = 4
"""Cores of each worker. The long application keeps its two cores while it has nothing to do; beside it run a
command, Airflow's job and the job of a task that was killed. While a worker is away two of them run.
"""
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = {
    **CONF,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.cores.max": "2",
    "spark.millrace.executors.timeout": "2m",
    "spark.executor.cores": "1",
    "spark.task.maxFailures": "20",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.2",
    "spark.speculation.efficiency.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def _start(*arguments: str, **options: Any) -> Process:
    return Process(arguments, **options)


class Place:
    """Started when made; ends with the process that makes it. `folder` gets all data and logs."""

    def __init__(self, folder: Path, *, on_yarn: bool = False, kerberos: bool = False) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.topics: list[str] = []
        zookeeper = _start("zookeeper", "--port", "0", "--data-dir", str(folder / "zookeeper")).ready()
        self.site = TestSite.start(_start, "offline", folder, zookeeper, BROKERS, REPLICAS)
        self.gone: set[int] = set()
        """Brokers that are gone with their disks."""
        self._write_spark_settings()
        self.spark = SparkCluster(
            folder / "spark",
            workers=WORKERS,
            cores=CORES,
            memory="4g",
            separate_hosts=True,
            environment=self._flaky(),
        )
        security = _log_in(folder) if kerberos else None
        staged = f"file://{folder}/staged"
        self.yarn = Yarn(folder / "yarn", staged, recovery=True, security=security) if on_yarn else None
        """Cluster on which the drivers of commands run; None for the machine of the command."""

    def add_topic(self, partitions: int) -> str:
        """One more topic, which traffic, loads and readers take up from now on."""
        name = self.site.topic(f"Topic{len(self.topics) + 1}", partitions)
        self.topics.append(name)
        return name

    def replace_brokers(self) -> None:
        """Start a broker with an empty disk in place of each that is gone; wait until all have everything."""
        cluster = self.site.cluster
        for number in self.gone:
            cluster.restart(number)
        self.gone.clear()
        with Cluster.connect(cluster.zookeeper, cluster.name, create=False) as known:
            wait_until("all replicas are in sync", lambda: _all_in_sync(known), timeout_s=START_S)

    @property
    def spark_environment(self) -> dict[str, str]:
        """Return the environment that makes a driver use the settings here."""
        yarn = {"HADOOP_CONF_DIR": str(self.yarn.conf)} if self.yarn else {}
        return {"SPARK_CONF_DIR": str(self.folder / "conf"), **yarn}

    @property
    def command_options(self) -> list[str]:
        """Return the options that say where a command's driver and its tasks run."""
        if self.yarn is None:
            return ["--master", self.spark.master]
        flaky = (f"spark.executorEnv.{name}={value}" for name, value in self._flaky().items())
        return [*self.yarn.cluster_mode, *(word for setting in flaky for word in ("--conf", setting))]

    def sources(self) -> dict[str, str]:
        """Return the sources of a load, as its settings name them."""
        return {"bootstrap": self.site.cluster.bootstrap, "registry": self.site.registry}

    def stop_flaky_reads(self) -> None:
        """From now on every read goes well."""
        (self.folder / "flaky-stop").touch()

    def reads(self) -> Counter[str]:
        """Count the outcomes of the tasks' reads: r(ead), c(ut), f(ailed), s(low)."""
        record = self.folder / "flaky-record"
        return Counter(record.read_text()) if record.exists() else Counter()

    def speculative_tasks(self) -> int:
        """Copies of tasks that Spark has started beside the first."""
        found = 0
        for log in (self.folder / "events").iterdir():
            for line in log.read_text(errors="replace").splitlines():
                started = '"Event":"SparkListenerTaskStart"' in line
                found += started and '"Speculative":true' in line
        return found

    def _write_spark_settings(self) -> None:
        for name in ("conf", "events"):
            (self.folder / name).mkdir()
        settings = {**SPARK, "spark.eventLog.dir": (self.folder / "events").as_uri()}
        lines = (f"{key} {value}\n" for key, value in settings.items())
        (self.folder / "conf" / "spark-defaults.conf").write_text("".join(lines))

    def _flaky(self) -> dict[str, str]:
        ports = [broker.address.rpartition(":")[2] for broker in self.site.cluster.brokers.values()]
        return {
            "FLAKY_PORTS": ",".join(ports),
            "FLAKY_RECORD": str(self.folder / "flaky-record"),
            "FLAKY_STOP": str(self.folder / "flaky-stop"),
        }


def _log_in(folder: Path) -> Security:
    """Start a KDC. From now on this process and all it starts have a ticket."""
    kdc = Kdc(folder / "kdc")
    security = Security.make(kdc, folder / "security")
    kdc.ticket(kdc.keytab(USER, [USER], life="20h"), USER, folder / "ticket", life="20h")
    os.environ |= {
        "KRB5_CONFIG": str(kdc.krb5_conf),
        "KRB5CCNAME": str(folder / "ticket"),
        "JAVA_TOOL_OPTIONS": f"{security.java} {QUICK_JVM}",
        "MILLRACE_HDFS_CA": str(security.ca),
    }
    return security


def _all_in_sync(cluster: Cluster) -> bool:
    """By directories: for a moment a broker whose disk is new may still count for what was on the old one."""
    directories = {number: broker.directory for number, broker in cluster.brokers.items()}
    states = (state for topic in cluster.topics.values() for state in topic.partitions.values())
    return len(directories) == BROKERS and all(dict(state.isr) == directories for state in states)


def topics_file(place: Place) -> Path:
    """The topics as a file of JSON, for what runs in other processes; written anew by each call."""
    path, draft = place.folder / "topics.json", place.folder / "topics.json.new"
    draft.write_text(json.dumps(place.topics))
    return draft.replace(path)
