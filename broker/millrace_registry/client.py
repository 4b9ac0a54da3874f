"""A client of any registry with Confluent's REST interface, Millrace's or another.

Schemas by id are immutable, so they are fetched once and kept. Every wait is bounded: if a registry cannot be
reached, one MillraceError is raised. The client is thread-safe. It pickles as its address, so it can be sent
to a Spark worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from millrace.errors import ConfigError, MillraceError
from millrace.process import HomeProcess
from millrace.urls import address_and_auth, without_secret

WAITS_S = (0.1, 0.3, 1.0, 2.0, 2.0, 2.0, 2.0)
"""Pause before each retry. A registry that restarts is back within their sum, also on a busy machine."""
_SHORTEST_TRY_S = 0.1
"""Shortest timeout of a try, also of the only try for a caller whose timeout is over."""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryUnavailable(MillraceError):
    """The registry does not answer, or its answer is not a registry's. A later retry may help."""


class UnknownSchema(MillraceError):
    """The registry does not have the schema, subject or version. A retry does not help."""


class SchemaRefused(MillraceError):
    """The registry refuses the schema: it is invalid or breaks the compatibility level."""


class RegisteredVersion(NamedTuple):
    """A schema as a version of a subject: (schema_id, version, schema)."""

    schema_id: int
    version: int
    schema: Any


class SchemaRegistryClient:
    """A client that looks up, registers and checks schemas.

    It stops retrying `timeout_s` after the first try.
    """

    def __init__(self, url: str, *, timeout_s: float = 10) -> None:
        try:
            address, auth = address_and_auth(url.rstrip("/"))
        except ConfigError as error:
            raise ConfigError(f"registry {error}") from None
        self.address = url
        """The registry's URL with its password, for other clients of the registry. It must not be shown."""
        self.url = without_secret(url.rstrip("/"))
        """The registry's URL without its password, so that it may be shown."""
        self._timeout_s = timeout_s
        self._home = HomeProcess("client of the schema registry")
        self._schemas: dict[int, Any] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._http = httpx.Client(
            base_url=address,
            auth=auth,
            timeout=timeout_s,
            # Loading certificates takes longer than everything else here.
            verify=address.startswith("https"),
            headers={"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SchemaRegistryClient, timeout_s=self._timeout_s), (self.address,)

    def __enter__(self) -> SchemaRegistryClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def schema(self, schema_id: int) -> Any:
        """Return the schema of an id as parsed JSON (a dict for a record), without references; do not change
        it.

        Raise UnknownSchema when the registry has no such id. Raise RegistryUnavailable when it does not
        answer.
        """
        if schema_id not in self._schemas:
            self._schemas[schema_id] = _parsed(self.ask(f"/schemas/ids/{schema_id}?format=resolved"))
        return self._schemas[schema_id]

    def find_schema(self, schema_id: int) -> Any | None:
        try:
            return self.schema(schema_id)
        except UnknownSchema:
            return None

    def register(self, subject: str, schema: Any, *, timeout_s: float | None = None) -> int:
        """Register a schema (parsed JSON) under a subject; return its id, which is the old id if the schema
        exists already.

        `timeout_s` shortens the client's own timeout for this call. Raise SchemaRefused when the registry
        refuses the schema.
        """
        text = json.dumps(schema)
        if (subject, text) not in self._ids:
            path = f"/subjects/{quoted(subject)}/versions"
            answer = self.ask(path, {"schema": text}, expected=("id",), timeout_s=timeout_s)
            self._ids[subject, text] = int(answer["id"])
        return self._ids[subject, text]

    def latest(self, subject: str, *, timeout_s: float | None = None) -> RegisteredVersion:
        """Return the newest version of a subject, requested each time. Raise UnknownSchema when the subject
        has no version.

        `timeout_s` shortens the client's own timeout for this call.
        """
        path = f"/subjects/{quoted(subject)}/versions/latest?format=resolved"
        answer = self.ask(path, expected=("id", "version"), timeout_s=timeout_s)
        return RegisteredVersion(answer["id"], answer["version"], _parsed(answer))

    def lookup(self, subject: str, schema: Any) -> RegisteredVersion | None:
        """Return the version under which the subject holds the schema; None when it does not."""
        path = f"/subjects/{quoted(subject)}"
        try:
            answer = self.ask(path, {"schema": json.dumps(schema)}, expected=("id", "version"))
        except UnknownSchema:
            return None
        return RegisteredVersion(answer["id"], answer["version"], schema)

    def versions(self, subject: str) -> list[int]:
        """Return the subject's versions; empty when there is no such subject."""
        try:
            return [int(version) for version in self.ask(f"/subjects/{quoted(subject)}/versions")]
        except UnknownSchema:
            return []

    def subjects_of(self, schema_id: int) -> list[str]:
        """Return the subjects whose versions, deleted ones too, have the schema of an id.

        Return None for an unknown id.
        """
        try:
            return sorted(map(str, self.ask(f"/schemas/ids/{schema_id}/subjects?deleted=true")))
        except UnknownSchema:
            return []

    def is_millrace(self) -> bool:
        """Return True for a registry of Millrace, which takes a whole folder in one request.

        Raise RegistryUnavailable when the registry does not answer.
        """
        try:
            clusters = self.ask("/v1/metadata/id")["scope"]["clusters"]
            return bool(clusters["schema-registry-cluster"] == "millrace")
        except RegistryUnavailable:
            raise
        except (MillraceError, LookupError, TypeError):  # other registries have no such page
            return False

    def level(self, subject: str) -> tuple[str, bool]:
        """Return the level that applies to a subject, and True if the subject has its own level."""
        path = f"/config/{quoted(subject)}"
        try:
            return str(self.ask(path, expected=("compatibilityLevel",))["compatibilityLevel"]), True
        except UnknownSchema:
            return str(self.ask("/config", expected=("compatibilityLevel",))["compatibilityLevel"]), False

    def incompatibilities(self, subject: str, schema: Any) -> list[str]:
        """Return reasons why the schema breaks the subject's compatibility level, one line each.

        The list is empty if it does not.
        """
        path = f"/compatibility/subjects/{quoted(subject)}/versions?verbose=true"
        answer = self.ask(path, {"schema": json.dumps(schema)}, expected=("is_compatible",))
        if answer["is_compatible"]:
            return []
        return [str(reason) for reason in answer.get("messages") or ["the registry gives no reason"]]

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        method: str | None = None,
        expected: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Any:
        """Send a GET, a POST with the `body`, or the `method`. Return the answer's JSON, an object with the
        expected keys.

        A request may be sent twice, so it must be idempotent.
        """
        self._home.check()  # two processes would take each other's answers
        method = method or ("GET" if body is None else "POST")
        response = self._send(method, path, body, self._timeout_s if timeout_s is None else timeout_s)
        no_registry = f"{self.url} does not answer like a schema registry: give the right address"
        try:
            answer = response.json()
        except ValueError:
            raise RegistryUnavailable(no_registry) from None
        fields = answer if isinstance(answer, dict) else {}
        if response.is_success and all(key in fields for key in expected):
            return answer
        # A registry's message ends with a full stop, but here it is the first half of a sentence.
        reason = str(fields.get("message", f"HTTP {response.status_code}")).removesuffix(".")
        message = f"registry {self.url}: {reason}"
        # Only a registry sends 40401 and similar codes; a bare 404 means a wrong address or a proxy.
        if response.status_code == 404 and str(fields.get("error_code", "")).startswith("4040"):
            raise UnknownSchema(message)
        if response.status_code in (409, 422):
            raise SchemaRefused(message)
        raise RegistryUnavailable(
            no_registry if response.is_success or response.status_code == 404 else message
        )

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        """Return the first answer below 500 other than 429; retry within the timeout.

        Registering the same schema again gives the same id.
        """
        content = None if body is None else json.dumps(body)
        deadline = time.monotonic() + min(timeout_s, self._timeout_s)
        for wait_s in (*WAITS_S, None):
            try:
                left_s = max(deadline - time.monotonic(), _SHORTEST_TRY_S)
                response = self._http.request(method, path, content=content, timeout=left_s)
                if response.status_code < 500 and response.status_code != 429:
                    return response
                reason = f"HTTP {response.status_code}"
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
            if wait_s is None or time.monotonic() + wait_s > deadline:
                break
            time.sleep(wait_s)
        raise RegistryUnavailable(
            f"schema registry {self.url} does not answer ({reason}): start it with `millrace registry`,"
            " or give the right address"
        )


def quoted(subject: str) -> str:
    return quote(subject, safe="")


def _parsed(answer: Any) -> Any:
    try:
        return json.loads(answer["schema"])
    except (KeyError, TypeError, ValueError):
        raise RegistryUnavailable("the registry's answer holds no schema") from None
