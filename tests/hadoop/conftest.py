"""One KDC, one HDFS with Kerberos and two NameNodes, one cluster of brokers; and the run's last line.

HADOOP OK: ran=N skipped=0      nothing for a run that failed: pytest's own words and exit code stand

Without Maven and MIT's Kerberos there is nothing to run: one line says so, and the exit code is 1.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from millrace_spark.jobs.submit import FAST_START
from millrace_warehouse.storage import open_storage
from millrace_warehouse.storage.hdfs import HdfsStorage
from tests.canary import Secrets
from tests.conftest import Start
from tests.last_line import LastLine
from tests.peers import kdc as kerberos
from tests.peers import maven
from tests.peers.hdfs import Hdfs, site_xml
from tests.peers.kdc import Kdc
from tests.peers.secured import Security
from tests.remote_warehouse import warehouse_on_hdfs
from tests.warehouses import TestSite

USER = "millrace"
RENEW_S = 30
"""Seconds that a delegation token lives without a renewal: much less than a load may take."""
LONGEST_S = 120
"""Seconds after which it can be renewed no more."""
KEY_BYTES = 32
# At the end of an entry of a keytab: the key, and its version once more in four bytes.
KEY = slice(-KEY_BYTES - 4, -4)
_last_line = LastLine("HADOOP")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables for this process and all it starts, until the context ends; None unsets one."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def identity(keytab: Path | None, cache: Path) -> dict[str, str | None]:
    """Return the variables of a user with a keytab, or with nothing but a ticket cache."""
    return {"KRB5_CLIENT_KTNAME": str(keytab) if keytab else None, "KRB5CCNAME": str(cache)}


def write_conf(folder: Path, core: Mapping[str, str], hdfs: Mapping[str, str]) -> Path:
    """Write the site files of a client; others, such as yarn-site.xml, may be added beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "core-site.xml").write_text(site_xml(core))
    (folder / "hdfs-site.xml").write_text(site_xml(hdfs))
    return folder


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A realm, and its krb5.conf for this process, for all it starts, and for Java, also in containers."""
    with Kdc(tmp_path_factory.mktemp("kdc")) as running:
        java = f"-Djava.security.krb5.conf={running.krb5_conf} {FAST_START}"
        with environment({"KRB5_CONFIG": str(running.krb5_conf), "JAVA_TOOL_OPTIONS": java}):
            yield running


@pytest.fixture(scope="session")
def keytab(kdc: Kdc) -> Path:
    """Keytab of the user that loads."""
    return kdc.keytab(USER, [USER])


def secrets_of(keytab: Path, owner: str = USER, renewer: str = USER) -> Secrets:
    """The user's key in three notations, and what every token of this owner and renewer has in common."""
    key, secrets = keytab.read_bytes()[KEY], Secrets()
    assert len(key) == KEY_BYTES
    secrets.know_bytes("the key", key)
    secrets.know("the key in hexadecimal", key.hex())
    secrets.know("the key in base64", base64.b64encode(key).decode())
    # token := length, version 0, 8, owner, length, renewer ...: four characters before the owner.
    common = f"{owner}{chr(len(renewer))}{renewer}".encode()
    secrets.know("a token", base64.b64encode(common).decode()[: len(common) // 3 * 4])
    secrets.know_bytes("a token in bytes", common)
    return secrets


@pytest.fixture(scope="session")
def security(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Security:
    """Keytab, certificate and settings of every server."""
    return Security.make(kdc, tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="session")
def hdfs(
    kdc: Kdc, security: Security, keytab: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hdfs]:
    """Two NameNodes and two DataNodes. This process, and all it starts, is `millrace` by its keytab."""
    settings = {
        "dfs.namenode.delegation.token.renew-interval": str(RENEW_S * 1000),
        "dfs.namenode.delegation.token.max-lifetime": str(LONGEST_S * 1000),
        "hadoop.http.authentication.token.validity": "5",
    }
    folder = tmp_path_factory.mktemp("hdfs")
    with (
        environment({**identity(keytab, folder / "user.cache"), "MILLRACE_HDFS_CA": str(security.ca)}),
        Hdfs(folder, datanodes=2, namenodes=2, security=security, settings=settings) as running,
        environment({"HADOOP_CONF_DIR": str(client_conf(running, folder / "conf"))}),
    ):
        with environment(identity(security.keytab, folder / "superuser.cache")):
            give_folders(running, "/warehouses")
        yield running


def give_folders(hdfs: Hdfs, *paths: str) -> None:
    """As the superuser, give folders to the user that loads."""
    client = storage_at(hdfs.uri)._client
    for path in paths:
        client.ask("PUT", path, op="MKDIRS")
        client.ask("PUT", path, op="SETOWNER", owner=USER)


def client_conf(hdfs: Hdfs, folder: Path) -> Path:
    """Write the site files of a client of HDFS."""
    return write_conf(folder, hdfs.settings, hdfs.settings)


def storage_at(uri: str) -> HdfsStorage:
    """Open a warehouse, as a driver does."""
    storage = open_storage(uri)
    assert isinstance(storage, HdfsStorage)
    return storage


@pytest.fixture
def storage(hdfs: Hdfs) -> Iterator[HdfsStorage]:
    """A warehouse of the test's own; afterwards everything runs again that the test has killed."""
    yield storage_at(f"{hdfs.uri}/warehouses/{uuid4().hex[:8]}")
    hdfs.start()


@pytest.fixture(scope="session")
def site(zookeeper: str, start_for_run: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    """A broker and a registry."""
    folder = tmp_path_factory.mktemp("site")
    return TestSite.start(start_for_run, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


warehouse = warehouse_on_hdfs


def pytest_sessionstart() -> None:
    """End a run that could only fail."""
    if not maven.available():
        pytest.exit(
            "Hadoop comes from Maven Central: install Maven (Debian: apt-get install maven)", returncode=1
        )
    if missing := kerberos.missing():
        pytest.exit(f"{', '.join(missing)} not installed (Debian: {kerberos.INSTALL})", returncode=1)
