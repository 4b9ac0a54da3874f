"""pyiceberg's REST catalog with an end to every wait: by itself it waits for ever for a silent server."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import rest
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

CONNECT_S, ANSWER_S = 10.0, 60.0
"""Most time for a connection, and for an answer. A commit that was given up may still be made."""


class RestCatalog(rest.RestCatalog):
    """Requests that are not answered in time fail; but for those signed with SigV4, which have an adapter."""

    def _config_headers(self, session: Session) -> None:
        # pyiceberg's first step with a session, before it asks for a token.
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Impatient())
        super()._config_headers(session)


class _Impatient(HTTPAdapter):
    def send(self, request: PreparedRequest, *arguments: Any, **settings: Any) -> Response:
        settings["timeout"] = settings.get("timeout") or (CONNECT_S, ANSWER_S)
        return super().send(request, *arguments, **settings)
