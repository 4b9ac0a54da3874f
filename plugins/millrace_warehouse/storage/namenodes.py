"""Requests to the active NameNode, with the proof of identity that it asks for.

    by name      ?user.name=, as long as the NameNode answers
    by ticket    after 401 Negotiate: only to get a delegation token, to renew and to cancel it
    by token     every other request: a driver's own, or in a task the one that Spark or the driver has got

With tickets alone a NameNode would make a token of its own for every block. A daemon thread renews a token
that tasks have got: a stage may last longer than a token, and its tasks have nothing else. At the process's
end a token that no task has got is cancelled. Does not retry.
"""

from __future__ import annotations

import atexit
import html
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage.gss import ByTicket, NoTicket, asks_for_ticket, log_in
from millrace_warehouse.storage.hadoop_settings import WebHdfs
from millrace_warehouse.storage.webhdfs_errors import NotNow, TokenEnded, Unusable, check_trusted, refusal

_TIMEOUT_S = httpx.Timeout(30.0, connect=10.0)
_RENEW_AGAIN_S = 60.0
"""Most seconds until a renewal that failed is repeated."""
logger = logging.getLogger("millrace.warehouse.storage")


_Request = Callable[[str, str, str, dict[str, str]], httpx.Response]
"""A request to a NameNode: address, method, path and parameters."""


class NameNodes:
    """The NameNodes of one HDFS, of which one is active. Threads may share them."""

    def __init__(self, where: WebHdfs, http: httpx.Client, token_of_spark: str) -> None:
        self._where, self._http, self._addresses = where, http, where.addresses
        self._given = [token for token in (token_of_spark, where.token) if token]
        """Delegation tokens of YARN and of the driver. The first counts until it has ended."""
        self._own = ""
        """Delegation token for this process's ticket."""
        self._renewal: Renewal | None = None
        self._changing = threading.RLock()
        self._warned = False

    def token_for_tasks(self) -> str:
        """Return the token, renewed from now on, or "" where the NameNode has not asked for a ticket."""
        with self._changing:
            if self._where.kerberos and not self._token():
                self.ask("GET", "/", op="GETFILESTATUS")  # the first request shows whether one is asked for
            if self._own and not self._renewal:
                self._renewal = Renewal(self._extend, lambda: self._log_in(self._own))
            return self._token()

    def _token(self) -> str:
        return next(iter(self._given), self._own)

    def ask(self, method: str, path: str, *members: str, **parameters: str) -> Any:
        """Return a member of the active NameNode's answer, or the whole one, None when it is empty."""
        return self._ask(self._by_token, method, path, members, parameters)

    def _ask(
        self, request: _Request, method: str, path: str, members: Sequence[str], parameters: dict[str, str]
    ) -> Any:
        """Ask the NameNodes, that of the last answer first. A bad one does not hide one that answers."""
        failures = dict[str, Exception]()
        for address in self._addresses:
            try:
                answer = request(address, method, path, parameters)
                if answer.status_code != httpx.codes.OK:
                    raise refusal(answer, path)
                found = _member(answer, members)
                self._addresses = (address, *(other for other in self._addresses if other != address))
                return found
            except (NotNow, ConfigError, NoTicket, Unusable) as error:
                failures[address] = error
        for failure in failures.values():
            if not isinstance(failure, NotNow):
                raise failure
        raise NotNow("; ".join(f"NameNode {address}: {error}" for address, error in failures.items()))

    def _by_token(self, address: str, method: str, path: str, parameters: dict[str, str]) -> httpx.Response:
        token = self._token()
        identity = {"delegation": token} if token else {"user.name": self._where.user}
        answer = self._request(address, method, path, {**parameters, **identity})
        refused = refusal(answer, path) if answer.status_code == 403 else None
        ended = isinstance(refused, TokenEnded)
        if (ended or asks_for_ticket(answer)) and (token not in self._given or len(self._given) > 1):
            self._log_in(token)
            answer = self._request(address, method, path, {**parameters, "delegation": self._token()})
        elif ended and "can't be found" in str(refused) and len(self._where.addresses) > 1:
            # A standby calls itself active before it has read the last edits, such as a token's.
            raise NotNow(str(refused))
        elif self._where.kerberos and not token and answer.status_code == httpx.codes.OK:
            self._warn_of_open(address)
        return answer

    def _log_in(self, ended: str) -> None:
        """Drop a token that has ended. If no other is left, get one for a ticket."""
        with self._changing:
            if ended in self._given:
                self._given.remove(ended)
            elif ended == self._own:  # no other thread has logged in
                get = {"op": "GETDELEGATIONTOKEN"}
                self._own = self._ask(self._by_ticket, "GET", "/", ["Token", "urlString"], get)
                if not ended:
                    atexit.register(self._cancel, os.getpid())

    def _extend(self) -> float:
        """Return the seconds that the own token lives after its renewal, 0 if it has ended."""
        try:
            renew = {"op": "RENEWDELEGATIONTOKEN", "token": self._own}
            until_ms = self._ask(self._by_ticket, "PUT", "/", ["long"], renew)
        except TokenEnded:
            return 0.0
        return float(until_ms) / 1000 - time.time()

    def _cancel(self, process: int) -> None:
        """Cancel the own token at the end of its process, unless a task may have it."""
        if process == os.getpid() and not self._renewal:
            with suppress(MillraceError, NotNow):  # it lives for a day
                cancel = {"op": "CANCELDELEGATIONTOKEN", "token": self._own}
                self._ask(self._by_ticket, "PUT", "/", (), cancel)

    def _by_ticket(self, address: str, method: str, path: str, parameters: dict[str, str]) -> httpx.Response:
        answer = self._request(address, method, path, parameters, ByTicket())
        page = re.search(r"<title>Error \d+ (.*?)</title>", answer.text)
        # Of the web server, in front of WebHDFS:
        if page and answer.status_code in (401, 403) and "Authorization" in answer.request.headers:
            raise Unusable(
                f"NameNode {address} refuses the ticket of {log_in()} ({html.unescape(page[1])}): check its"
                " clock, its keytab for HTTP, and that hadoop.security.auth_to_local has a rule for this"
                " principal"
            )
        return answer

    def _request(
        self, address: str, method: str, path: str, parameters: dict[str, str], auth: ByTicket | None = None
    ) -> httpx.Response:
        url = f"{self._where.scheme}://{address}/webhdfs/v1{quote(path)}"
        try:
            return self._http.request(method, url, params=parameters, auth=auth, timeout=_TIMEOUT_S)
        except httpx.RequestError as error:
            check_trusted(f"NameNode {address}", error)
            raise NotNow(str(error)) from None

    def _warn_of_open(self, address: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "WebHDFS of %s takes any user's name without a ticket, although"
                " hadoop.security.authentication is kerberos: set hadoop.http.authentication.type to"
                " kerberos on the servers of HDFS",
                address,
            )


def _member(answer: httpx.Response, members: Sequence[str]) -> Any:
    """Return a member of an answer, or the whole one. Raise NotNow if the answer lacks the member."""
    try:
        found: Any = answer.json() if answer.content else None
        for member in members:
            found = found[member]
        if members and found is None:
            raise LookupError
        return found
    except (ValueError, LookupError, TypeError):
        raise NotNow(f"its answer is no JSON with {'.'.join(members) or 'anything'}") from None


class Renewal:
    """The thread that renews a token as long as the process lives, or replaces it if it cannot live on."""

    def __init__(self, extend: Callable[[], float], replace: Callable[[], None]) -> None:
        self._extend, self._replace, self._lives_s = extend, replace, 0.0
        threading.Thread(target=self._run, args=(self._renew(),), name="renewal", daemon=True).start()

    def _renew(self) -> float:
        """Renew the token once. Return the seconds until the next time."""
        left_s = self._extend()
        if left_s <= 0.75 * self._lives_s:
            self._replace()
            left_s = self._extend()
        self._lives_s = max(self._lives_s, left_s)
        return max(left_s / 2, 1.0)

    def _run(self, pause_s: float) -> None:
        wait_s = pause_s
        while True:
            time.sleep(wait_s)
            try:
                wait_s = pause_s = self._renew()
            except Exception as error:
                logger.warning(
                    "the delegation token of HDFS could not be renewed, and will be again: %s", error
                )
                # Several times before the token ends: NameNodes that fail over refuse for a while.
                wait_s = min(max(pause_s / 4, 1.0), _RENEW_AGAIN_S)
