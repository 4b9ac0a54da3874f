"""Asks each service of a connection for a sign of life, for the button that tests a connection."""

from __future__ import annotations

import httpx

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.urls import address_and_auth, without_secret
from millrace_airflow.settings import MillraceSettings

TIMEOUT_S = 5.0


def check_services(settings: MillraceSettings) -> str:
    """One line that says what answered; MillraceError names the first service that did not."""
    with ClusterClient(settings.bootstrap, timeout_s=TIMEOUT_S) as client:
        topics = len(client.topics())
    _get(f"{settings.registry.rstrip('/')}/subjects", "schema registry")
    _get(f"{settings.auditor.rstrip('/')}/v1/topics", "auditor")
    return f"brokers with {topics} topics, schema registry and auditor answer"


def _get(url: str, what: str) -> None:
    address, auth = address_and_auth(url)
    try:
        response = httpx.get(address, auth=auth, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise MillraceError(
            f"no {what} answers at {without_secret(url)}: {error or type(error).__name__}"
        ) from None
    if response.is_error:
        raise MillraceError(f"{without_secret(url)} is no {what}: it answers {response.status_code}")
