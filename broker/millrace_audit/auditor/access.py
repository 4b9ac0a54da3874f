"""Who may ask the auditor what: the role of each route. A route without one does not start."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace.service.access import AccessList, NotKnown

ROLES: dict[tuple[str, str], str] = {
    ("GET", "/"): "",
    ("GET", "/v1/health"): "",
    ("GET", "/v1/topics/{topic}/completeness"): "read",
    ("GET", "/v1/topics/{topic}/history"): "read",
    ("GET", "/v1/topics"): "read",
    ("GET", "/v1/bad"): "read",
    ("GET", "/v1/strangers"): "read",
    ("GET", "/console"): "read",
    ("GET", "/metrics"): "metrics",
    ("POST", "/v1/instances/{instance}/accept"): "accept",
    ("POST", "/v1/accept"): "accept",
}
"""Method and path -> the role that it takes; empty: open to everybody."""
_CONSOLE = "/console/"
"""What the page is made of has the page's role."""
_UNUSED_OUTSIDE = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
"""FastAPI's own pages: they are there where everybody may ask everything."""


def _role(method: str, path: str) -> str | None:
    if path.startswith(_CONSOLE):
        return "read" if method == "GET" else None
    return ROLES.get((method, path))


def check_roles(app: FastAPI) -> None:
    """RuntimeError unless every route of the application has a role."""
    for route in app.routes:
        path = getattr(route, "path", "")
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else set()
        known = bool(methods) and all(_role(method, path) is not None for method in methods)
        if path not in _UNUSED_OUTSIDE and not known:
            raise RuntimeError(f"route {path} has no role: give it one in ROLES")


class Admission:
    """Stands before the application: answers who may not ask with 401 or 403, and reads nothing of a body."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], access: AccessList) -> None:
        self._app, self._routes, self._access = app, routes, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        role = self._role_of(scope)
        if role == "":
            return None
        try:
            name = self._access.name_of(Headers(scope=scope).get("authorization"))
        except NotKnown as error:
            challenge = {"WWW-Authenticate": 'Basic realm="millrace"'}  # has a browser ask for name and token
            return JSONResponse({"error": str(error)}, status_code=401, headers=challenge)
        if role is None or not self._access.allows(name, role):
            what = "a role for this" if role is None else f"the role {role}"
            return JSONResponse({"error": f"{name} lacks {what}: ask an operator for it"}, status_code=403)
        scope.setdefault("state", {})["who"] = name
        return None

    def _role_of(self, scope: Scope) -> str | None:
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return _role(scope["method"], getattr(route, "path", ""))
        return None


def who_asks(request: Request) -> str | None:
    """Who has proved to be that; None where nobody is asked to."""
    who: str | None = getattr(request.state, "who", None)
    return who
