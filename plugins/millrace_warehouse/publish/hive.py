"""pyiceberg's catalog of a Hive Metastore, with a time limit, a missing database and refusals as others have.

A commit makes sure of its lock just before the change: the metastore ends a lock without a heartbeat, and
other commits may have been made since.

engine.hive.lock-enabled = false     commit without the metastore's locks, by comparing the location of the
                                     table's metadata, as Iceberg's other writers do with this setting
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    CheckLockRequest,
    EnvironmentContext,
    GetTableRequest,
    InvalidObjectException,
    InvalidOperationException,
    LockRequest,
    LockResponse,
    LockState,
    MetaException,
    NoSuchLockException,
    NoSuchObjectException,
    UnlockRequest,
)
from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION, hive
from pyiceberg.exceptions import BadRequestError, CommitFailedException, WaitingForLockException
from pyiceberg.table import CommitTableResponse, Table
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from millrace_warehouse.publish.catalog import CatalogError

ANSWER_S = 60.0
"""Most seconds for a connection, and for an answer. A commit that was given up on may still be made."""
_LOCKS = "engine.hive.lock-enabled"
_LOCK_WAIT = {hive.LOCK_CHECK_RETRIES: "45", hive.LOCK_CHECK_MAX_WAIT_TIME: "15"}
"""Ten minutes: a metastore that ends the locks of dead writers has done it by then, with its defaults."""
_TYPE_CHANGES = "hive.metastore.disallow.incompatible.col.type.changes"
_FOREVER = ("ermission", "AccessControl", "uthoriz", "RangerAccess", "type expected")
"""Words of a MetaException that another try will not change: rights, and types unknown to the server."""


class _Client(hive._HiveClient):
    locks = True
    takes_settings = True
    """False once the metastore has refused a setting: it writes each refusal into its log."""

    def _init_thrift_transport(self) -> Any:
        if self._kerberos_auth:
            return super()._init_thrift_transport()
        where = urlsplit(self._uri)
        socket = TSocket(where.hostname, where.port)
        socket.setTimeout(ANSWER_S * 1000)
        return TBufferedTransport(socket)

    def _client(self) -> Client:
        client = _Requests(TBinaryProtocol(self._transport))
        client.locks = self.locks
        if self._ugi:
            client.set_ugi(*self._ugi)
        # A new field inside a record changes its column's type. Hive 2 has this setting only on the server.
        try:
            if self.takes_settings:
                client.setMetaConf(_TYPE_CHANGES, "false")
        except MetaException:
            self.takes_settings = False
        except Exception:
            self._transport.close()
            raise
        return client


class _Requests(Client):  # type: ignore[misc]
    """Requests that every release from 2.3 to 4.0 answers."""

    locks = True
    lock_id = 0
    """Lock that the commit holds."""

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        return self.get_table_req(GetTableRequest(dbname, tbl_name)).table

    def lock(self, rqst: LockRequest) -> LockResponse:
        response = super().lock(rqst) if self.locks else LockResponse(self.lock_id, LockState.ACQUIRED)
        self.lock_id = response.lockid
        return response

    def unlock(self, rqst: UnlockRequest) -> None:
        if rqst.lockid:
            with suppress(NoSuchLockException):
                super().unlock(rqst)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: EnvironmentContext
    ) -> None:
        if self.lock_id:  # a heartbeat, too: the lock then lives for a whole hive.txn.timeout
            self.check_lock(CheckLockRequest(self.lock_id))
        elif not self.locks:
            environment_context.properties |= {
                "expected_parameter_key": METADATA_LOCATION,
                "expected_parameter_value": new_tbl.parameters[PREVIOUS_METADATA_LOCATION],
            }
        super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)


class HiveCatalog(hive.HiveCatalog):
    """A Hive Metastore whose requests fail after a time limit, and whose refusals are known as such."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **{**_LOCK_WAIT, **properties})

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> hive._HiveClient:
        of = hive.HiveCatalog._create_hive_client(properties)
        client = _Client(of._uri, properties.get("ugi"), of._kerberos_auth, of._kerberos_service_name)
        client.locks = properties.get(_LOCKS, "true").lower() == "true"
        return client

    def create_table(self, identifier: Any, *arguments: Any, **options: Any) -> Table:
        with _refusals():
            try:
                return super().create_table(identifier, *arguments, **options)
            except (InvalidObjectException, NoSuchObjectException):
                self.load_namespace_properties(identifier[:-1])  # its error is the one that callers know
                raise

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        try:
            with _refusals():
                return super().commit_table(*arguments)
        except CommitFailedException as error:
            if not isinstance(error.__cause__, WaitingForLockException):
                raise
            raise CatalogError(
                f"another writer of {'.'.join(arguments[0].name())} keeps the metastore's lock: wait for its"
                " end, or, if it is dead, let the metastore end its lock (docs/warehouse.md), then run again"
            ) from error


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise BadRequestError for what the metastore would refuse again, CommitFailedException for a race."""
    try:
        yield
    except (NoSuchLockException, InvalidOperationException, InvalidObjectException, MetaException) as error:
        text = str(error.message).replace("\n", " ")
        # Before other words, because the text has the path of a table's file.
        if isinstance(error, NoSuchLockException) or "has been modified" in text:
            raise CommitFailedException(text) from error
        if isinstance(error, MetaException) and not any(words in text for words in _FOREVER):
            raise
        if "types incompatible" in text or "type expected" in text:
            text = f"set {_TYPE_CHANGES}=false in the metastore's hive-site.xml: {text}"
        raise BadRequestError(text) from error
