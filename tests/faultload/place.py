"""Everything a fault load runs on, as real processes on loopback addresses: brokers, registry, Spark.

Spark's settings are in a folder that SPARK_CONF_DIR names, so that every driver has them, whoever started it:
speculation as eager as it can be, many tries of a task, an event log to count what happened.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.faultload import flaky_reads
from tests.peers.spark_cluster import CONF, SparkCluster
from tests.support import Process
from tests.warehouses import TestSite

WORKERS = 2
CORES = 2
"""Of each worker: two applications can run side by side, each with an executor on every worker."""
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


class Processes:
    """Starts the project's own processes, and kills what is left of them in the end."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    def __call__(self, *arguments: str, **options: object) -> Process:
        """As the test fixture `start`."""
        process = Process(arguments, **options)  # type: ignore[arg-type]
        self.started.append(process)
        return process

    def close(self) -> None:
        """Kill them all."""
        for process in reversed(self.started):
            process.kill()


class Place:
    """Started when made; a context. `folder` gets all data and logs."""

    def __init__(self, folder: Path, brokers: int = 2) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.topics: list[str] = []
        self.start = Processes()
        self._stack = ExitStack()
        self._stack.callback(self.start.close)
        try:
            zookeeper = self.start(
                "zookeeper", "--port", "0", "--data-dir", str(folder / "zookeeper")
            ).ready()
            self.site = TestSite.start(self.start, "offline", folder, zookeeper, brokers)
            self._write_spark_settings()
            self.spark = self._stack.enter_context(
                SparkCluster(
                    folder / "spark", workers=WORKERS, cores=CORES, memory="2g", separate_hosts=True,
                    environment=self._flaky(),
                )
            )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def add_topic(self, partitions: int) -> str:
        """One more topic, which traffic, loads and readers take up from now on."""
        name = self.site.topic(f"Topic{len(self.topics) + 1}", partitions)
        self.topics.append(name)
        return name

    @property
    def spark_environment(self) -> dict[str, str]:
        """What makes a driver use the settings here."""
        return {"SPARK_CONF_DIR": str(self.folder / "conf")}

    def sources(self) -> dict[str, str]:
        """Where a load reads, as its settings name it."""
        return {"bootstrap": self.site.cluster.bootstrap, "registry": self.site.registry}

    def stop_flaky_reads(self) -> None:
        """From now on every read goes well."""
        (self.folder / "flaky-stop").touch()

    def reads(self) -> Counter[str]:
        """What became of the tasks' reads: r(ead), c(ut), f(ailed), s(low)."""
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

    def close(self) -> None:
        """Kill everything."""
        self._stack.close()

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_spark_settings(self) -> None:
        for name in ("conf", "events"):
            (self.folder / name).mkdir()
        settings = {**SPARK, "spark.eventLog.dir": (self.folder / "events").as_uri()}
        lines = (f"{key} {value}\n" for key, value in settings.items())
        (self.folder / "conf" / "spark-defaults.conf").write_text("".join(lines))

    def _flaky(self) -> dict[str, str]:
        shim = self.folder / "shim"
        shim.mkdir()
        shutil.copyfile(flaky_reads.__file__, shim / "sitecustomize.py")
        ports = [broker.address.rpartition(":")[2] for broker in self.site.cluster.brokers.values()]
        return {
            "PYTHONPATH": os.pathsep.join([str(shim), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "FLAKY_PORTS": ",".join(ports),
            "FLAKY_RECORD": str(self.folder / "flaky-record"),
            "FLAKY_STOP": str(self.folder / "flaky-stop"),
        }


def topics_file(place: Place) -> Path:
    """The topics as a file of JSON, for what runs in other processes; written anew by each call."""
    path, draft = place.folder / "topics.json", place.folder / "topics.json.new"
    draft.write_text(json.dumps(place.topics))
    return draft.replace(path)
