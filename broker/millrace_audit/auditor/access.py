"""Who may ask the auditor what: the role of each route."""

from __future__ import annotations

ROLES: dict[tuple[str, str], str] = {
    ("GET", "/"): "",
    ("GET", "/v1/health"): "",
    ("GET", "/v1/topics/{topic}/completeness"): "read",
    ("GET", "/v1/topics/{topic}/history"): "read",
    ("GET", "/v1/topics/{topic}/changes"): "read",
    ("GET", "/v1/topics"): "read",
    ("GET", "/v1/bad"): "read",
    ("GET", "/v1/strangers"): "read",
    ("GET", "/console"): "read",
    ("GET", "/metrics"): "metrics",
    ("POST", "/v1/instances/{instance}/accept"): "accept",
    ("POST", "/v1/accept"): "accept",
    ("POST", "/v1/topics/{topic}/accept-rejected"): "accept",
    ("POST", "/v1/topics/{topic}/replace-loads"): "accept",
}
"""Method and path -> the role that it takes; empty: open to everybody."""
_CONSOLE = "/console/"
"""What the page is made of has the page's role."""


def role_of(method: str, path: str) -> str | None:
    """The role that a route takes; None for a route that is none of the auditor's."""
    if path.startswith(_CONSOLE):
        return "read" if method == "GET" else None
    return ROLES.get((method, path))
