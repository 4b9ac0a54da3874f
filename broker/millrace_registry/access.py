"""Access to the registry: the only place that checks a request's token and role.

Every route but `/`, `/healthz` and `/favicon.ico` declares the role that it needs. `admit` checks the
application's access list before any part of the request's body is read. Without an access list every client
has every role.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import StrEnum

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request

from millrace.service.access import AccessList, Unauthenticated
from millrace_registry.errors import ErrorCode, RegistryError
from millrace_registry.requests import subject_or_global


class Role(StrEnum):
    """Roles of clients. No role contains another."""

    READ = "read"
    """Read schemas, versions, levels and modes, and check a schema's compatibility."""
    REGISTER = "register"
    """Register schemas."""
    ADMIN = "admin"
    """Delete subjects and versions, and change levels and modes."""


def needs(role: Role) -> Callable[[Request], Coroutine[None, None, None]]:
    async def admit_by_path(request: Request) -> None:
        admit(request, role, await subject_or_global(request))

    return admit_by_path


def admit(request: Request, role: Role, subject: str) -> None:
    """Raise RegistryError unless the client has the role for the subject; GLOBAL means all subjects."""
    access: AccessList | None = request.app.state.access
    if access is None:
        request.state.is_proven = True
        return
    try:
        name = access.name_of(request.headers.get("authorization"))
    except Unauthenticated as error:
        raise RegistryError(ErrorCode.UNAUTHENTICATED, str(error)) from None
    request.state.is_proven, request.state.who = True, name
    if not access.allows(name, role, subject):
        what = f"subject {subject!r}" if subject else "all subjects"
        message = f"User:{name} lacks the role {role} for {what}: ask an administrator for it"
        raise RegistryError(ErrorCode.FORBIDDEN, message)


READ, REGISTER, ADMIN = ([Depends(needs(role))] for role in Role)
"""Values for a route's `dependencies`."""
_ROLES = [dependency.dependency for (dependency,) in (READ, REGISTER, ADMIN)]
_OPEN_PATHS = ("/", "/healthz", "/favicon.ico")


def check_roles(app: FastAPI) -> None:
    """Raise RuntimeError unless every route declares its role, except those that are open to all."""
    for route in app.routes:
        dependencies = [one.dependency for one in route.dependencies] if isinstance(route, APIRoute) else []
        path = getattr(route, "path", "")
        if path not in _OPEN_PATHS and not any(role in dependencies for role in _ROLES):
            raise RuntimeError(f"route {path} has no role: give it READ, REGISTER or ADMIN")
