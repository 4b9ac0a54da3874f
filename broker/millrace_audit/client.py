"""Asking the auditor: its answers as values. Knows HTTP and JSON, nothing of how a verdict comes about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx

from millrace.errors import MillraceError
from millrace.urls import address_and_auth, without_secret

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Sequences of one producer instance that are `missing`, `duplicate` or `unexpected` at a tier."""

    kind: str
    tier: str
    server: str
    service: str
    instance: int
    sequences: Sequence[Sequence[int]]
    """[first, last] ranges."""
    count: int


@dataclass(frozen=True, slots=True)
class Window:
    """Ten minutes of event time [start, end) and what the audit knows of them."""

    start: datetime
    end: datetime
    verdict: str
    revision: int
    """Raised when something changes after the window's verdict was final."""
    acknowledged: int
    failed: int
    tiers: Mapping[str, int]
    """Messages counted at each tier, repeats included."""
    findings: Sequence[Finding]
    reasons: Sequence[str]
    """Why the verdict is unknown, and which silent instances an operator has accepted."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """The verdict on [start, end): `complete`, `incomplete` or `unknown`, as bad as its worst window."""

    topic: str
    start: datetime
    end: datetime
    verdict: str
    watermark: datetime | None
    """Every window before it is complete, without a hole; None when not even the first one is."""
    windows: Sequence[Window]

    @property
    def complete(self) -> bool:
        """True only for the verdict `complete`."""
        return self.verdict == "complete"

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Completeness:
        """The auditor's JSON as a value; KeyError or ValueError when it is something else."""
        watermark = answer["watermark"]
        return cls(
            topic=answer["topic"],
            start=datetime.fromisoformat(answer["from"]),
            end=datetime.fromisoformat(answer["to"]),
            verdict=answer["verdict"],
            watermark=None if watermark is None else datetime.fromisoformat(watermark),
            windows=[_window(window) for window in answer["windows"]],
        )


def _window(value: Mapping[str, Any]) -> Window:
    times = {key: datetime.fromisoformat(value[key]) for key in ("start", "end")}
    findings = [Finding(**finding) for finding in value["findings"]]
    return Window(**{**value, **times, "findings": findings})


def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
    """Ask the auditor at `url` about [start, end); a time without a zone is UTC.

    Raises MillraceError in one line when there is no auditor or it refuses the question.
    """
    return Completeness.from_json(completeness_answer(url, topic, start, end))


def completeness_answer(url: str, topic: str, start: datetime, end: datetime) -> dict[str, Any]:
    """The same as the auditor's own JSON."""
    question = {"from": _iso(start), "to": _iso(end)}
    return _ask("GET", f"{url.rstrip('/')}/v1/topics/{quote(topic, safe='')}/completeness", params=question)


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
