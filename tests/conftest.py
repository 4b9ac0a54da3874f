"""Fixtures for every test: processes that end with it, one ZooKeeper and one Spark session a run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import hypothesis
import pytest
from click.testing import CliRunner, Result
from hypothesis import Phase
from xdist.scheduler import LoadFileScheduling

# Airflow reads these once, at its first import, wherever in the run that is.
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="millrace-airflow-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME.name
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).resolve().parent.parent / "dags")
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{_AIRFLOW_HOME.name}/airflow.db"
# Spark's workers would otherwise take whatever `python3` is first on the path.
os.environ["PYSPARK_PYTHON"] = sys.executable

# With these set, pytest prints the whole diff of what differs: hours for two dictionaries of 2,500 entries.
# So a diff is cut short in CI, too.
for _name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(_name, None)

from tests import postgres  # noqa: E402
from tests.access_log import AccessLog, access_log_names, open_access_log  # noqa: E402
from tests.last_line import NO_TIME  # noqa: E402
from tests.support import Process  # noqa: E402  # the environment must be set first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One answer for one commit, on every machine, however busy; `make soak` draws other examples each time.
hypothesis.settings.register_profile("same-examples", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("new-examples", derandomize=False, deadline=None)
hypothesis.settings.register_profile(
    "first-failure",  # for `make mutants`, which needs no smallest one
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
)
hypothesis.settings.load_profile("new-examples" if "MILLRACE_ROUNDS" in os.environ else "same-examples")

SPARK = "the session's Spark"
LONGEST_FIRST = (
    "tests/integration/test_load.py",
    "tests/integration/test_data_source.py",
    "tests/integration/test_reload.py",
    "tests/integration/test_spark_mirror.py",
    "tests/integration/test_streaming.py",
    "tests/integration/test_tables.py",
    "tests/integration/test_verify.py",
    "tests/integration/test_audit.py",
    "tests/integration/test_spark_cluster.py",
    "tests/integration/test_agent.py",
    "tests/unit/wire/test_messages.py",
    "tests/compat/test_java_interceptor.py",
    "tests/compat/test_go_audit.py",
    "tests/compat/test_java_tools.py",
    "tests/compat/test_demo_on_kafka.py",
)
"""A file that is long and comes last leaves the other workers without work."""
WITH_SPARK = frozenset(LONGEST_FIRST[:7])
"""Files that use the fixture `spark`: one worker runs them, and Spark starts once."""

UNTIL = float(os.environ.get("MILLRACE_TESTS_UNTIL", "inf"))
"""Unix time from which on tests are skipped: on a slow machine the last suites of `.ci/run` end in time."""

Start = Callable[..., Process]
_started: list[Process] = []
"""Every process a fixture has started and not ended yet, for the report of a failure."""


def pytest_configure() -> None:
    """Compare the keys of every JSON answer of a command in this process with docs/commands.md."""
    invoke = CliRunner.invoke

    def checked(runner: CliRunner, command: click.Command, args: object = None, **more: Any) -> Result:
        done = invoke(runner, command, args, **more)  # type: ignore[arg-type]
        if isinstance(args, Sequence) and "--json" in args:
            from tests.json_answers import check_output  # imports every command's package

            check_output(args, done.stdout, command)
        return done

    CliRunner.invoke = checked  # type: ignore[method-assign,assignment]


def pytest_unconfigure() -> None:
    """A run leaves no folder of Airflow's behind."""
    _AIRFLOW_HOME.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {file: rank for rank, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


class _Packed(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file runs in one worker, and all that take Spark in the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SPARK if file in WITH_SPARK else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    # With xdist's log: without it each turn of the scheduler is printed.
    return _Packed(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip(NO_TIME)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the last words of every process that was running."""
    report = yield
    if report.failed:
        for process in _started:
            name = " ".join(process.arguments[:4])
            report.sections.append((f"process {process.pid}: {name}", "\n".join(process.lines[-20:])))
    return report


def _starter() -> Iterator[Start]:
    started: list[Process] = []

    def start(*arguments: str, **options: object) -> Process:
        process = Process(arguments, **options)  # type: ignore[arg-type]
        started.append(process)
        _started.append(process)
        return process

    yield start
    for process in reversed(started):
        process.kill()
        _started.remove(process)


@pytest.fixture
def start() -> Iterator[Start]:
    """`start("registry", "--listen", "127.0.0.1:0")` -> Process, killed when the test ends."""
    yield from _starter()


@pytest.fixture(scope="module")
def start_for_module() -> Iterator[Start]:
    """As `start`, for servers that all tests of a module share."""
    yield from _starter()


@pytest.fixture(scope="session")
def start_for_run() -> Iterator[Start]:
    """As `start`, for servers that the whole run shares."""
    yield from _starter()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a real ZooKeeper that the whole run shares; take a cluster name of your own."""
    data = tmp_path_factory.mktemp("zookeeper")
    process = Process(["zookeeper", "--port", "0", "--data-dir", str(data)])
    yield process.ready()
    process.kill()


@pytest.fixture(params=access_log_names())
def access_log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AccessLog:
    """The log written for tests; where ACCESS_LOG names a file, the test runs once more on that one."""
    return open_access_log(request.param, tmp_path_factory.mktemp("access-log"))


@pytest.fixture(scope="session")
def spark_jars() -> str:
    """Jars of other projects for the Spark session, as `spark.jars` takes them: none."""
    return ""


@pytest.fixture(scope="session")
def spark(spark_jars: str) -> Iterator[SparkSession]:
    """One local Spark session for the whole run."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("millrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", spark_jars)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    yield session
    gateway = SparkContext._gateway
    session.stop()
    # Or py4j's finalizers would talk to a JVM that is gone, and print tracebacks behind the summary.
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.communicate(timeout=30)  # closes its input, which ends the JVM
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A database on a PostgreSQL server of the run's own; whoever uses it empties it first."""
    if not postgres.installed():
        pytest.skip("needs PostgreSQL's server and psycopg: apt-get install postgresql")
    with postgres.postgresql() as url:
        yield url
