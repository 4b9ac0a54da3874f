"""pyiceberg's REST catalog with a time limit on every request: without it, pyiceberg waits for ever."""

from __future__ import annotations

from functools import partial

from pyiceberg.catalog import rest
from requests import Session

CONNECT_S, ANSWER_S = 10.0, 60.0
"""Most seconds for a connection, and for an answer. A commit that was given up on may still be made."""


class RestCatalog(rest.RestCatalog):
    """A REST catalog whose requests fail after a time limit, with any kind of authentication."""

    def _config_headers(self, session: Session) -> None:
        # pyiceberg's first step with a session, before it asks for a token.
        session.request = partial(session.request, timeout=(CONNECT_S, ANSWER_S))  # type: ignore[method-assign]
        super()._config_headers(session)
