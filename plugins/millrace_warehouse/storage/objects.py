"""A warehouse in an object store: S3 and stores with its protocol, Google Cloud Storage, Azure (ABFS).

An object is whole and durable once the store has confirmed it, so `put` needs no more than that. An
interrupted upload of several parts leaves parts that no listing shows: let a lifecycle rule of the bucket
delete them. `create` is a conditional PUT (If-None-Match: *, ifGenerationMatch=0). Some stores ignore the
condition and let every writer succeed: the first `create` of a process takes a unique name twice, and refuses
a store that accepts both.

Addresses and credentials are variables of the environment (AWS_*, GOOGLE_*, AZURE_*), as obstore reads them;
they are sent to tasks with the storage. The only module here that knows obstore.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage.streams import Hashing
from millrace_warehouse.storage.verbs import CHUNK_BYTES, DRAFT, Listed, Written

try:
    import obstore
    from obstore import exceptions, store
except ModuleNotFoundError as missing:  # the extra `objects` is not installed
    raise ConfigError(
        "a warehouse in an object store needs obstore: pip install 'millrace-pipeline[objects]'"
    ) from missing

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")
VARIABLES = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "abfs": "AZURE_", "abfss": "AZURE_"}
"""The scheme of an address -> prefix of its variables in the environment."""
PATIENCE_S = 120.0
"""Most time for retries of a request."""
PAUSE_S = 1.0
"""Seconds between two tries of a request; obstore repeats each try itself."""
REQUEST_S = 60.0
_MISSING_TRIES = 3
_UNKNOWN = re.compile(r"Configuration key: '(\w+)'")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_REFUSED = re.compile(r"status code: (?:4(?!08|09|29)\d\d|501)")
"""Answers that a retry would not change."""


def settings_of(root: str) -> dict[str, str]:
    """Variables of the environment that the store at this address knows; ConfigError for a bad address."""
    begin = VARIABLES[root.partition("://")[0]]
    settings = {name.lower(): value for name, value in os.environ.items() if name.startswith(begin)}
    while True:
        try:
            _open(root, settings, PATIENCE_S)
            return settings
        except exceptions.UnknownConfigurationKeyError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or settings.pop(unknown[1], None) is None:
                raise
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(
                f"warehouse {root!r}: {_words(error)}: check the address and {begin}* in the environment"
            ) from None


def _open(root: str, settings: Mapping[str, str], patience_s: float) -> store.ObjectStore:
    config: Any = dict(settings)
    return store.from_url(
        root,
        config=config,
        # HTTP without TLS is used only if the store's address says http.
        client_options={
            "allow_http": True,
            "connect_timeout": timedelta(seconds=10),
            "timeout": timedelta(seconds=min(REQUEST_S, patience_s / 2)),
        },
        retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=min(30, patience_s))},
    )


class ObjectStorage:
    """The storage verbs in a bucket or a container."""

    def __init__(self, root: str, settings: Mapping[str, str], patience_s: float = PATIENCE_S) -> None:
        self.root = root
        self.settings = settings
        self._patience_s = patience_s
        self._is_exclusive = False

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[str, Mapping[str, str], float]]:
        return ObjectStorage, (self.root, self.settings, self._patience_s)

    @cached_property
    def _store(self) -> store.ObjectStore:
        """The client, opened on first use: its threads would not survive a fork."""
        return _open(self.root, self.settings, self._patience_s)

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        def attempt() -> bytes:
            if not start and length is None:
                return bytes(obstore.get(self._store, path).bytes())
            end = None if length is None else start + length
            try:
                if end is not None:
                    return bytes(obstore.get_range(self._store, path, start=start, end=end))
                return bytes(obstore.get(self._store, path, options={"range": {"offset": start}}).bytes())
            except exceptions.GenericError:
                # Each store has a different error for a range after the end.
                if start < obstore.head(self._store, path)["size"]:
                    raise
                return b""

        if length == 0:
            return b""
        try:
            return self._until_answered("read", path, attempt, missing_tries=1)
        except FileNotFoundError:
            raise FileNotFoundError(self.uri(path)) from None

    def put(self, path: str, content: BinaryIO) -> Written:
        start = content.tell()

        def attempt() -> Written:
            content.seek(start)
            hashing = Hashing(content)
            chunks = iter(hashing)
            first = next(chunks, b"")
            body = first if len(first) < CHUNK_BYTES else chain([first], chunks)
            obstore.put(self._store, path, body, chunk_size=CHUNK_BYTES)
            return hashing.written

        return self._until_answered("write", path, attempt)

    def create(self, path: str, content: bytes) -> bool:
        if not self._is_exclusive:
            self._check_exclusive(path.rpartition("/")[0])
        return self._create(path, content)

    def _create(self, path: str, content: bytes) -> bool:
        def attempt() -> bool:
            try:
                obstore.put(self._store, path, content, mode="create")
                return True
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                # The name exists: by another writer, or by an earlier try whose answer was lost.
                return bytes(obstore.get(self._store, path).bytes()) == content

        return self._until_answered("create", path, attempt)

    def _check_exclusive(self, folder: str) -> None:
        """Take a name twice; MillraceError when the store accepts both."""
        name = f"{folder}/{DRAFT}twice.{uuid.uuid4().hex}".lstrip("/")
        try:
            self._is_exclusive = self._create(name, b"first") and not self._create(name, b"second")
        finally:
            self.delete(name)
        if not self._is_exclusive:
            raise MillraceError(
                f"{self.root}: the store ignores `If-None-Match: *` of a PUT and lets two writers create one"
                " name, so that two loads would both count: take a store that knows conditional writes"
            )

    def names(self, folder: str, after: str = "") -> list[str]:
        prefix = f"{folder}/".lstrip("/")

        def attempt() -> list[str]:
            if after:
                # Only a recursive listing can begin after a key.
                return [found["path"] for found in self._objects(folder, f"{prefix}{after}")]
            found = obstore.list_with_delimiter(self._store, folder or None)
            return [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]

        keys = self._until_answered("list", folder, attempt)
        names = {key.removeprefix(prefix).partition("/")[0] for key in keys}
        return sorted(name for name in names if name > after and not name.startswith(DRAFT))

    def files(self, folder: str) -> list[Listed]:
        def attempt() -> list[ObjectMeta]:
            found = list(self._objects(folder))
            if not found and folder:
                try:
                    return [obstore.head(self._store, folder)]
                except FileNotFoundError:
                    pass
            return found

        found = self._until_answered("list", folder, attempt)
        inside = len(folder) + 1 if folder else 0
        return sorted(
            (
                Listed(meta["path"][inside:], meta["size"], meta["last_modified"].timestamp())
                for meta in found
            ),
            key=lambda listed: listed.path,
        )

    def delete(self, path: str) -> None:
        def attempt() -> None:
            # A listing shows the objects below a path, but not an object at the path.
            paths = [found["path"] for found in self._objects(path)]
            try:
                obstore.delete(self._store, paths or [path])
            except FileNotFoundError:
                if paths:  # another process deletes, too; a new listing finds the rest
                    raise exceptions.GenericError("it is listed and cannot be found") from None

        self._until_answered("delete", path, attempt)

    def _objects(self, folder: str, offset: str | None = None) -> Iterator[ObjectMeta]:
        portions = obstore.list(self._store, folder or None, offset=offset, chunk_size=1000)
        return chain.from_iterable(portions)

    def _until_answered(
        self, verb: str, path: str, attempt: Callable[[], T], missing_tries: int = _MISSING_TRIES
    ) -> T:
        """Repeat an attempt whose failure may be temporary; FileNotFoundError or MillraceError if it is not.

        A missing object may be an upload of several parts whose last answer was lost, or a name that another
        process is about to create.
        """
        deadline, missing = time.monotonic() + self._patience_s, 0
        while True:
            try:
                return attempt()
            except FileNotFoundError as error:
                missing += 1
                if missing_tries == 1:
                    raise
                if missing == missing_tries:
                    raise self._explained(verb, path, error, "create the bucket, then run again") from None
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
                advice = f"let the identity in {self._variables}* read, write, list and delete there"
                raise self._explained(verb, path, error, advice) from None
            except exceptions.BaseError as error:
                if time.monotonic() > deadline or _REFUSED.search(str(error)):
                    advice = f"check the store and {self._variables}* in the environment, then run again"
                    raise self._explained(verb, path, error, advice) from None
            time.sleep(PAUSE_S)

    @property
    def _variables(self) -> str:
        return VARIABLES[self.root.partition("://")[0]]

    def _explained(self, verb: str, path: str, error: Exception, advice: str) -> MillraceError:
        return MillraceError(f"cannot {verb} {self.uri(path)}: {_words(error)}: {advice}")


def _words(error: Exception) -> str:
    """Return the store's own message, or the first line of obstore's."""
    text = str(error)
    found = _MESSAGE.search(text)
    return (found[1] if found else next(iter(text.splitlines()), "")).strip().rstrip(".:")[:300]
