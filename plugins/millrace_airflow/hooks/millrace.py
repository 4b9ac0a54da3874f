"""MillraceHook: one connection as a frozen value, and a test of the services that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from millrace.errors import ConfigError, MillraceError
from millrace.urls import address_and_auth, without_secret
from millrace_airflow.settings import CLIENT_FILE, MillraceSettings, settings_of

if TYPE_CHECKING:
    from millrace.config import ClientSecurity

DEFAULT_CONN_ID = "millrace_default"
TEST_TIMEOUT_S = 5.0
"""Time that each service has to answer when a connection is tested."""


class MillraceHook(BaseHook):
    """Looks up a connection of type `millrace` and reads its settings."""

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "millrace"
    hook_name = "Millrace"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> MillraceSettings:
        """Return the connection's settings. Raise ConfigError, naming the connection or its wrong field."""
        with self._refusing():
            return settings_of(self.get_connection(self.conn_id))

    async def aget_conn(self) -> MillraceSettings:
        """Return the settings like `get_conn`, for triggers, without blocking the triggerer's loop."""
        with self._refusing():
            return settings_of(await self.aget_connection(self.conn_id))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise ConfigError for a connection that does not exist. No task retries this error."""
        try:
            yield
        except AirflowNotFoundException:
            raise ConfigError(
                f"there is no connection {self.conn_id!r}: create it in Airflow, of type millrace"
            ) from None

    def test_connection(self) -> tuple[bool, str]:
        """Ask brokers, registry and auditor; return (True, a summary) or (False, the first error)."""
        try:
            return True, _check_services(self.get_conn())
        except MillraceError as error:
            return False, str(error)


def _check_services(settings: MillraceSettings) -> str:
    from millrace.client.cluster_client import ClusterClient

    with (
        _security(settings) as security,
        ClusterClient(settings.bootstrap, timeout_s=TEST_TIMEOUT_S, security=security) as client,
    ):
        topics = len(client.topics())
    _get(f"{settings.registry.rstrip('/')}/subjects", "schema registry")
    _get(f"{settings.auditor.rstrip('/')}/v1/topics", "auditor")
    return f"brokers with {topics} topics, schema registry and auditor answer"


@contextmanager
def _security(settings: MillraceSettings) -> Iterator[ClientSecurity | None]:
    """Yield settings for reaching the brokers. The files that they name exist until the exit."""
    from millrace.security.client import load_client

    with TemporaryDirectory(prefix="millrace-") as folder:  # readable by this user only
        for name, text in settings.client_files().items():
            Path(folder, name).touch(mode=0o600)
            Path(folder, name).write_text(text)
        file = settings.client_file or (str(Path(folder, CLIENT_FILE)) if settings.protocol else "")
        yield load_client(file) if file else None


def _get(url: str, service: str) -> None:
    import httpx

    address, auth = address_and_auth(url)
    try:
        response = httpx.get(address, auth=auth, timeout=TEST_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise MillraceError(
            f"no {service} answers at {without_secret(url)}: {error or type(error).__name__}"
        ) from None
    if response.is_error:
        raise MillraceError(f"{without_secret(url)} is no {service}: it answers {response.status_code}")
