"""Asking the auditor: its answers as values. Knows HTTP and JSON, nothing of how a verdict comes about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx

from millrace.errors import MillraceError
from millrace.urls import address_and_auth, without_secret
from millrace_audit.answer import Completeness

TIMEOUT_S = 30.0


def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
    """Ask the auditor at `url` about [start, end); a time without a zone is UTC.

    Raises MillraceError in one line when there is no auditor or it refuses the question.
    """
    query = {"from": _iso(start), "to": _iso(end)}
    path = f"{url.rstrip('/')}/v1/topics/{quote(topic, safe='')}/completeness"
    return Completeness.from_json(_ask("GET", path, params=query))


def accept(url: str, instance: int, reason: str) -> dict[str, Any]:
    """Accept that a silent instance will never report; the reason stays visible beside its windows."""
    return _ask("POST", f"{url.rstrip('/')}/v1/instances/{instance}/accept", json={"reason": reason})


def _iso(time: datetime) -> str:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def _ask(method: str, url: str, **options: Any) -> dict[str, Any]:
    address, auth = address_and_auth(url)
    try:
        response = httpx.request(method, address, auth=auth, timeout=TIMEOUT_S, **options)
        answer = response.json()
    except httpx.HTTPError as error:
        raise MillraceError(
            f"no auditor answers at {without_secret(url)}: {error or type(error).__name__}"
        ) from error
    except ValueError:
        raise MillraceError(
            f"{without_secret(url)} is no auditor: it answers {response.status_code} without JSON"
        ) from None
    if response.is_error or not isinstance(answer, dict):
        text = answer.get("error") if isinstance(answer, dict) else None
        raise MillraceError(f"the auditor refuses: {text or answer}")
    return answer
