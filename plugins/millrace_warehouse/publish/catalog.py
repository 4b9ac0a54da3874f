"""The catalog of a warehouse's tables: its own SQLite file, or a catalog of pyiceberg's configuration.

millrace.<topic>          the rows; `.` and `-` of the topic become `_`
millrace.<topic>_hours    the changes of each hour by publications
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from millrace.errors import ConfigError, MillraceError
from millrace.topic_names import table_name
from millrace_warehouse.history.layout import CATALOG
from millrace_warehouse.storage.file_io import PY_IO_IMPL
from millrace_warehouse.storage.interface import Storage

T = TypeVar("T")

NAMESPACE = "millrace"
TRIES = 6
"""Most tries of a request to a catalog. The pauses between them add up to 6 s."""
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.", "ceph", "glusterfs", "lustre", "afs", "gpfs", "beegfs")
REFUSED = (exceptions.BadRequestError, exceptions.ForbiddenError, exceptions.UnauthorizedError)
MOUNTS = Path("/proc/self/mountinfo")


class CatalogError(MillraceError):
    """The catalog refuses a request, or does not answer in time."""


class TableFileGone(MillraceError):
    """A file of a table is missing: deleted meanwhile, or the catalog is older than the last expiry."""


def table_identifier(topic: str) -> tuple[str, str]:
    """Return the namespace and name of a topic's table."""
    return NAMESPACE, table_name(topic)


def connect(storage: Storage, name: str = "", *, create: bool = True) -> Catalog:
    """Open the catalog of that name, with its files in the storage. Close it after use.

    Without a name, it is `catalog.db` in a local warehouse. `create` creates that file if it is missing.
    Without `create`, a missing file is read as a catalog without tables. Raise MillraceError when there is no
    catalog, or when SQLite's file would lie on a network file system.
    """
    if name:
        return _configured(name)
    if not storage.root.startswith("file://"):
        raise ConfigError(
            f"which catalog has the tables of {storage.root}? name one with --catalog, and describe it in"
            " ~/.pyiceberg.yaml or in PYICEBERG_CATALOG__<NAME>__URI: an Iceberg REST catalog or PostgreSQL"
        )
    path = Path(storage.root.removeprefix("file://"), CATALOG)
    if not path.parent.is_dir():
        raise ConfigError(
            f"there is no warehouse at {storage.root}: correct --warehouse, or load into it first"
        )
    refuse_network_file_system(path)
    uri = f"sqlite:///{path}" if create or path.exists() else "sqlite://"  # without a path, in memory
    return _open(lambda: SqlCatalog(NAMESPACE, uri=uri, **{"py-io-impl": PY_IO_IMPL}))


def _configured(name: str) -> Catalog:
    settings = {key: str(value) for key, value in (Config().get_catalog_config(name) or {}).items()}
    if not settings:
        raise ConfigError(
            f"pyiceberg knows no catalog {name!r}: describe it in ~/.pyiceberg.yaml, or in"
            f" PYICEBERG_CATALOG__{name.upper()}__URI"
        )
    uri = urlsplit(settings.get("uri", ""))
    if uri.scheme.startswith("sqlite"):
        refuse_network_file_system(Path(unquote(uri.path)[1:]).absolute())
    # The settings as read just now: pyiceberg itself keeps those that it read at its import.
    settings["py-io-impl"] = PY_IO_IMPL
    if settings.get("type", "rest") == "rest" and uri.scheme in ("http", "https"):
        from millrace_warehouse.publish.rest import RestCatalog  # only this kind needs an HTTP client

        return _open(lambda: RestCatalog(name, **settings))
    if settings.get("type") == "hive" or ("type" not in settings and uri.scheme == "thrift"):
        return _open(lambda: _metastore(name, settings))
    return _open(lambda: load_catalog(name, **settings))


def _metastore(name: str, settings: dict[str, str]) -> Catalog:
    try:
        from millrace_warehouse.publish.hive import HiveCatalog  # only this kind needs a thrift client

        return HiveCatalog(name, **settings)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = "hive-kerberos" if settings.get("hive.kerberos-authentication") else "hive"
        raise exceptions.NotInstalledError(
            f"{package} is not installed; run pip install 'pyiceberg[{extra}]'"
        ) from error


def _open(connect_once: Callable[[], Catalog]) -> Catalog:
    # Repeated: if two processes create a new SQL catalog's tables at once, one of them is refused.
    catalog = ask_catalog("catalog", connect_once)
    if isinstance(catalog, SqlCatalog):
        _open_for_each_use(catalog)
    return catalog


def _open_for_each_use(catalog: SqlCatalog) -> None:
    """Let the catalog keep no SQLite file open: after a copy was put in its place, an open file is no longer
    the catalog.
    """
    pooled = catalog.engine
    if pooled.dialect.name == "sqlite" and pooled.url.database:  # a catalog in memory is its connection
        pooled.dispose()
        catalog.engine = create_engine(pooled.url, echo=pooled.echo, poolclass=NullPool)


def refuse_network_file_system(path: Path) -> None:
    """Raise MillraceError if SQLite's file would lie where locks do not work between machines."""
    type_ = _file_system(path)
    if type_.startswith(_NETWORK):
        raise MillraceError(
            f"the catalog {path} would lie on {type_}, where SQLite's locks do not hold between machines:"
            " describe an Iceberg REST catalog or PostgreSQL to pyiceberg, and name it with --catalog"
        )


def _file_system(path: Path) -> str:
    """Return the type of a path's file system, or empty where the system does not list file systems."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:  # not Linux
        return ""
    # The fifth word is the mount point, with spaces as \040; the type is the first word after the dash.
    types = {_unescaped(words[4]): words[words.index("-") + 1] for words in mounts}
    resolved = path.resolve()
    return next((types[str(folder)] for folder in (resolved, *resolved.parents) if str(folder) in types), "")


def _unescaped(mount: str) -> str:
    return mount.encode().decode("unicode_escape")


def ask_catalog(what: str, question: Callable[[], T]) -> T:
    """Ask a catalog and return its answer. Raise CatalogError when it refuses, or has failed TRIES times."""
    for turn in range(TRIES):
        try:
            return question()
        except (MillraceError, exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
            raise
        except exceptions.NotInstalledError as error:
            raise ConfigError(f"the {what} needs a package: {first_line(error)}") from error
        except REFUSED as error:
            raise refusal(what, error) from error
        except Exception as error:
            if turn == TRIES - 1 and isinstance(error, FileNotFoundError):
                raise TableFileGone(
                    f"the {what} names a file that is gone ({first_line(error)}): mount the warehouse"
                    " that has it, restore it from a copy, or rebuild the table with `millrace publish"
                    " TOPIC --rebuild`"
                ) from error
            if turn == TRIES - 1:
                raise CatalogError(
                    f"the {what} does not answer ({type(error).__name__}: {first_line(error)}): start it, or"
                    " correct its settings; loads go on without it, and the next publication catches up"
                ) from error
        time.sleep(0.2 * 2**turn)
    raise AssertionError("unreachable")


def refusal(what: str, error: Exception) -> CatalogError:
    """Return the error for a request that a catalog has refused, and would refuse again."""
    return CatalogError(
        f"the {what} refuses ({type(error).__name__}: {first_line(error)}): correct its settings or the"
        " rights of this user, then run again"
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, cut to 200 characters."""
    return str(error).partition("\n")[0][:200]


def load_table(catalog: Catalog, identifier: tuple[str, str]) -> Table | None:
    """Return a table as the catalog has it now, or None.

    Raise CatalogError when the catalog does not answer.
    """
    try:
        return ask_catalog(f"catalog {catalog.name}", lambda: catalog.load_table(identifier))
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
        return None


def drop_table(catalog: Catalog, identifier: tuple[str, str]) -> None:
    """Remove a table from the catalog; its files stay."""
    with suppress(exceptions.NoSuchTableError):  # dropped, and the answer was lost
        ask_catalog(f"catalog {catalog.name}", lambda: catalog.drop_table(identifier))


@contextmanager
def reading(table: Table) -> Iterator[None]:
    """Guard the reading of a table's manifests. Raise TableFileGone when one disappears, as in an erasure."""
    try:
        yield
    except FileNotFoundError as error:
        raise TableFileGone(
            f"a file of {'.'.join(table.name())} was deleted while it was read ({first_line(error)}): run"
            " again; if the error returns, rebuild the table with `millrace publish TOPIC --rebuild`"
        ) from error


def create_table(
    catalog: Catalog,
    identifier: tuple[str, str],
    schema: Schema,
    spec: PartitionSpec,
    location: str,
    settings: Mapping[str, str],
) -> Table:
    """Create a table, or return the table that another run has created at the same moment.

    Its metadata lies at `location`, or at the catalog's own choice: some catalogs accept only their own
    location.
    """
    what = f"catalog {catalog.name}"

    def create() -> Table:
        try:
            try:
                return catalog.create_table(identifier, schema, location, spec, properties=dict(settings))
            except (exceptions.BadRequestError, exceptions.ForbiddenError):
                return catalog.create_table(identifier, schema, None, spec, properties=dict(settings))
        except exceptions.TableAlreadyExistsError:
            with suppress(exceptions.NoSuchTableError):  # a proxy may say so of a request that was refused
                return catalog.load_table(identifier)
            raise

    try:
        return ask_catalog(what, create)
    except exceptions.NoSuchNamespaceError:
        ask_catalog(what, lambda: _create_namespace(catalog, identifier[0]))
        return ask_catalog(what, create)


def _create_namespace(catalog: Catalog, namespace: str) -> None:
    with suppress(exceptions.NamespaceAlreadyExistsError):
        catalog.create_namespace(namespace)
