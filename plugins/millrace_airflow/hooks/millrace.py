"""MillraceHook: one connection as a frozen value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from millrace.errors import MillraceError
from millrace_airflow.settings import MillraceSettings, settings_from_connection

if TYPE_CHECKING:
    from airflow.sdk import Connection

DEFAULT_CONN_ID = "millrace_default"


class MillraceHook(BaseHook):
    """Looks a connection of type `millrace` up; the settings in it are all there is to know."""

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "millrace"
    hook_name = "Millrace"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> MillraceSettings:
        """The connection's settings; ConfigError names the field that is missing or wrong."""
        return _settings(self.get_connection(self.conn_id))

    async def aget_conn(self) -> MillraceSettings:
        """As `get_conn`, for triggers: never blocks the triggerer's loop."""
        return _settings(await self.aget_connection(self.conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Ask brokers, registry and auditor; (True, what answered) or (False, the first that did not)."""
        from millrace_airflow.reachable import check_services

        try:
            return True, check_services(self.get_conn())
        except MillraceError as error:
            return False, str(error)


def _settings(connection: Connection) -> MillraceSettings:
    return settings_from_connection(
        connection.conn_id, connection.host, connection.port, connection.extra_dejson
    )
