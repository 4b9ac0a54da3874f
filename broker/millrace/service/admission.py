"""Checks before a web application: the client has the route's role, and no page of another site has sent the
request.

An application states the role of each of its routes; without the role of a route it does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace.service.access import AccessList, Unauthenticated
from millrace.service.json_answer import JsonAnswer

RoleOf = Callable[[str, str], str | None]
"""(method, path) of a route -> the role that it requires; empty: open to all; None: refused to all."""
_UNUSED_OUTSIDE = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
"""FastAPI's own pages, which are served only without an access list."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_roles(app: FastAPI, role_of: RoleOf) -> None:
    """Raise RuntimeError unless every route of the application has a role."""
    for route in app.routes:
        path = getattr(route, "path", "")
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else set()
        known = bool(methods) and all(role_of(method, path) is not None for method in methods)
        if path not in _UNUSED_OUTSIDE and not known:
            raise RuntimeError(f"route {path} has no role: give it one in ROLES")


def admit(app: FastAPI, role_of: RoleOf, access: AccessList | None, *, limited_by: str | None = None) -> None:
    """Check that routes have roles, and admit requests by these roles; without an access list admit all.

    `limited_by` is the path parameter to which a role can be limited, as in `write:web-*`. A change that a
    browser sends for another site's page is always refused.
    """
    check_roles(app, role_of)
    app.add_middleware(_Admission, routes=app.routes, access=access, role_of=role_of, limited_by=limited_by)
    app.add_middleware(_OwnPages)


class _Admission:
    """Middleware that answers refused clients with 401 or 403, and reads nothing of a body."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[BaseRoute],
        access: AccessList | None,
        role_of: RoleOf,
        limited_by: str | None,
    ) -> None:
        self._app, self._routes, self._access = app, routes, access
        self._role_of, self._limited_by = role_of, limited_by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JsonAnswer | None:
        state = scope.setdefault("state", {})
        if self._access is None:
            state["is_proven"] = True
            return None
        role, what = self._asked_for(scope)
        try:
            name = self._access.name_of(Headers(scope=scope).get("authorization"))
        except Unauthenticated as error:
            if role == "":
                return None
            challenge = {"WWW-Authenticate": 'Basic realm="millrace"'}  # a browser then asks for them
            return JsonAnswer({"error": str(error)}, status_code=401, headers=challenge)
        state["is_proven"] = True
        if role is None or (role and not self._access.allows(name, role, what)):
            lacks = "a role for this" if role is None else f"the role {role}{f' for {what}' if what else ''}"
            return JsonAnswer({"error": f"{name} lacks {lacks}: ask an operator for it"}, status_code=403)
        state["who"] = name
        return None

    def _asked_for(self, scope: Scope) -> tuple[str | None, str]:
        """Return the role of the request's route, and the name to which the role may be limited."""
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                limit = found.get("path_params", {}).get(self._limited_by, "")
                return self._role_of(scope["method"], getattr(route, "path", "")), str(limit)
        return None, ""


def who_asks(request: Request) -> str | None:
    """Return the client's name, proven by its token; None for a request that needed no token."""
    who: str | None = getattr(request.state, "who", None)
    return who


class _OwnPages:
    """Middleware that refuses changes which a browser sends for another site's page with the user's name and
    token.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and from_another_site(scope["method"], Headers(scope=scope)):
            refusal = JsonAnswer({"error": ANOTHER_SITE}, status_code=403)
            return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)


ANOTHER_SITE = "a browser sent this change for a page of another site: send it without a browser"


def from_another_site(method: str, headers: Headers) -> bool:
    """Return True for a request that may change something and that a browser sends for a page of another
    site.

    Browsers state that in Sec-Fetch-Site, except for addresses without TLS on another machine: then they name
    the page's site as Origin. A client that sends neither header is no browser, so it sends its own token
    only.
    """
    if method in _SAFE_METHODS:
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
