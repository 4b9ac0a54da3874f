"""Roles of the auditor's routes."""

from __future__ import annotations

from millrace.service.pages import FILES

ROLES: dict[tuple[str, str], str] = {
    ("GET", "/"): "",
    ("GET", "/v1/health"): "",
    ("GET", "/v1/topics/{topic}/completeness"): "read",
    ("GET", "/v1/topics/{topic}/history"): "read",
    ("GET", "/v1/topics/{topic}/changes"): "read",
    ("GET", "/v1/topics"): "read",
    ("GET", "/v1/bad"): "read",
    ("GET", "/v1/facts"): "read",
    ("GET", "/v1/incidents"): "read",
    ("GET", "/v1/rejected-records"): "read",
    ("GET", "/favicon.ico"): "",
    **{("GET", f"/{page}"): "read" for page in ("console", "topic", "hour", "cluster", *FILES)},
    ("GET", "/metrics"): "metrics",
    ("POST", "/v1/instances/{instance}/accept"): "accept",
    ("POST", "/v1/accept"): "accept",
    ("POST", "/v1/incidents/{key:path}/acknowledge"): "accept",
    ("POST", "/v1/topics/{topic}/accept-rejected"): "accept",
    ("POST", "/v1/topics/{topic}/replace-loads"): "accept",
}
"""(method, path) -> role that the route requires; empty for a route that is open to everybody."""


def role_of(method: str, path: str) -> str | None:
    """Return the role that a route requires, or None if the auditor has no such route."""
    return ROLES.get((method, path))
