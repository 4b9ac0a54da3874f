"""A client of the auditor, which returns its answers as values.

It uses HTTP and JSON, and decides no verdict.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from millrace.errors import MillraceError
from millrace.urls import address_and_auth, without_secret
from millrace_audit.answer import Bad, Changes, Completeness, Incident, window_from_json

TIMEOUT_S = 30.0
T = TypeVar("T")


def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
    """Ask the auditor at `url` about [start, end); a time without a zone is UTC.

    Raise MillraceError, in one line, when there is no auditor or it refuses the question.
    """
    query = {"from": _iso(start), "to": _iso(end)}
    answer = _ask("GET", f"{_topic(url, topic)}/completeness", params=query)
    return _read(Completeness.from_json, answer, url)


def changes(url: str, topic: str, since: str | None) -> Changes:
    """Return the hours of a topic whose final verdict changed since the cursor of an earlier answer; all
    hours if it is None.

    A cursor of another database (the auditor's was lost and filled again) counts as None.
    """
    params = {} if since is None else {"since": since}
    return _read(Changes.from_json, _ask("GET", f"{_topic(url, topic)}/changes", params=params), url)


def _topic(url: str, topic: str) -> str:
    return f"{url.rstrip('/')}/v1/topics/{quote(topic, safe='')}"


def _read(read: Callable[[Any], T], answer: Any, url: str) -> T:
    try:
        return read(answer)
    except (AttributeError, KeyError, TypeError, ValueError):  # of a proxy, or an auditor of another version
        raise MillraceError(
            f"{without_secret(url)} does not answer like an auditor of this version: give the right address"
        ) from None


def bad(url: str, topic: str | None, limit: int) -> list[Bad]:
    """Return the windows that are not complete, of one topic or of all, the worst first."""
    params = {"limit": limit} | ({} if topic is None else {"topic": topic})
    found = _ask("GET", f"{url.rstrip('/')}/v1/bad", params=params)
    return [Bad(one["topic"], window_from_json(one["window"])) for one in found]


def facts(url: str, topic: str, window: datetime, limit: int) -> dict[str, Any]:
    """Return the facts about the window around a time, and the outcome of every rule.

    Lists of facts have at most `limit` entries.
    """
    query = {"topic": topic, "window": _iso(window), "limit": limit}
    found: dict[str, Any] = _ask("GET", f"{url.rstrip('/')}/v1/facts", params=query)
    return found


def incidents(
    url: str, *, key: str | None = None, topic: str | None = None, limit: int = 1000
) -> list[Incident]:
    """Return the open incidents, of one topic or of all, the worst first; or the incident with a key."""
    params: dict[str, str | int] = {"limit": limit}
    params |= {"open": "true"} if key is None else {"key": key}
    params |= {} if topic is None else {"topic": topic}
    found = _ask("GET", f"{url.rstrip('/')}/v1/incidents", params=params)
    return _read(lambda answer: [*map(Incident.from_json, answer)], found, url)


def history(url: str, topic: str, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """Return operators' decisions on a topic, and changes of the final verdicts of [start, end)."""
    query = {"from": _iso(start), "to": _iso(end)}
    found: list[dict[str, Any]] = _ask("GET", f"{_topic(url, topic)}/history", params=query)
    return found


def accept(url: str, instance: int, reason: str, *, disown: bool = False) -> Any:
    """Accept that a silent instance will never report; the reason stays visible beside its windows.

    With `disown` its reports do not count: the instance was not one of your producers.
    """
    body = {"reason": reason, "who": _me(), "disown": disown}
    return _ask("POST", f"{url.rstrip('/')}/v1/instances/{instance}/accept", json=body)


def accept_service(
    url: str,
    service: str,
    reason: str,
    *,
    server: str | None = None,
    before: datetime | None = None,
    disown: bool = False,
) -> list[int]:
    """Accept every silent instance of a service whose last message came before a time; return the instances.

    With `disown`, accept also the instances that have ended.
    """
    body = {
        "service": service,
        "server": server,
        "before": None if before is None else _iso(before),
        "reason": reason,
        "who": _me(),
        "disown": disown,
    }
    instances: list[int] = _ask("POST", f"{url.rstrip('/')}/v1/accept", json=body)["instances"]
    return instances


def accept_rejected(url: str, topic: str, load: int, reason: str) -> int:
    """Give up the messages that a load rejected; return their number."""
    body = {"load": load, "reason": reason, "who": _me()}
    messages: int = _ask("POST", f"{_topic(url, topic)}/accept-rejected", json=body)["messages"]
    return messages


def replace_loads(url: str, topic: str, reason: str) -> list[int]:
    """Let the auditor count the loads that replaced lost loads; return the lost loads."""
    body = {"reason": reason, "who": _me()}
    loads: list[int] = _ask("POST", f"{_topic(url, topic)}/replace-loads", json=body)["loads"]
    return loads


def _me() -> str:
    """Return USER@HOST of the operator for the auditor's history; the auditor does not check it."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"somebody@{socket.gethostname()}"


def _iso(time: datetime) -> str:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def _ask(method: str, url: str, **options: Any) -> Any:
    address, auth = address_and_auth(url)
    try:
        response = httpx.request(method, address, auth=auth, timeout=TIMEOUT_S, **options)
        answer = response.json()
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise MillraceError(
            f"no auditor answers at {without_secret(url)} ({reason}): start it with `millrace auditor`,"
            " or give the right address"
        ) from error
    except ValueError:
        raise MillraceError(
            f"{without_secret(url)} is no auditor: it answers {response.status_code} without JSON"
        ) from None
    if response.status_code == httpx.codes.NOT_FOUND:
        raise MillraceError(
            f"{without_secret(url)} is unknown there: give the address of an auditor of this version"
        )
    if response.is_error or not isinstance(answer, dict | list):
        text = answer.get("error") if isinstance(answer, dict) else None
        raise MillraceError(f"the auditor refuses: {text or answer}")
    return answer
