"""Search for leaked secrets: in processes, pages and files while work runs, and afterwards in what is left.

Knows no service. A secret is looked for as it is, and as the header of a login that holds it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.jobs import descendants

POLL_S = 0.5
MOST_BYTES = 64 << 20
"""Larger files are not read while work runs, but at its end."""
_PAGES = ("environment/", "executors/", "jobs/", "stages/", "SQL/", "storage/")
_ANSWERS = ("environment", "allexecutors", "jobs", "stages?details=true", "sql?details=true")


class Secrets:
    """Secrets by the name of the place that each of them is for."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def make(self, name: str) -> str:
        """A canary of the test's own for a place."""
        return self.know(name, f"canary-{name}-5e1fd30b7c")

    def know(self, name: str, value: str) -> str:
        """Look for a secret that somebody else has made, too; returns it."""
        self.know_bytes(name, value.encode())
        return value

    def know_bytes(self, name: str, value: bytes) -> None:
        """Look for a secret that is no text."""
        self._values = {**self._values, name: value}  # a new one: a Watch may be reading the old one

    def login(self, name: str, user: str) -> str:
        """USER:SECRET as a URL takes it; its header of HTTP is looked for, too."""
        shown = f"{user}:{self._values[name].decode()}"
        self.know(f"{name} in a header", base64.b64encode(shown.encode()).decode())
        return shown

    def within(self, data: bytes) -> list[str]:
        """The names of the secrets in some bytes."""
        return [name for name, value in self._values.items() if value in data]


class Watch:
    """Looks at all of it every half second, in a thread, until the context ends.

    Command lines of every process must hold no secret, and environments of this test's processes only those
    that `may_know` gives to a command line by a regular expression. A file below `folder` that others may
    read must hold none. `spark` are URLs of Spark's pages: those of a driver, of a master or of a worker.
    """

    def __init__(
        self, secrets: Secrets, folder: Path, may_know: Mapping[str, str], spark: Sequence[str]
    ) -> None:
        self._secrets, self._folder, self._spark = secrets, folder, spark
        self._may_know = {name: re.compile(pattern) for name, pattern in may_know.items()}
        self._read: dict[Path, tuple[int, int]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary")
        self.sightings: set[str] = set()
        self.seen: Counter[str] = Counter()
        """Number of pages, environments and files searched, by kind."""
        self.failure: Exception | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(POLL_S):
                self._look_at_processes()
                self._look_at_pages()
                self._look_at_files()
        except Exception as error:  # a watch that ended early has seen nothing
            self.failure = error

    def _look_at_processes(self) -> None:
        own = set(descendants(os.getpid()))
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                whole = command.decode(errors="replace")
                shown = whole[:200]
                self._note(self._secrets.within(command), f"the command line of {shown}")
                if int(folder.name) in own:
                    self.seen["environment"] += 1
                    known = self._secrets.within((folder / "environ").read_bytes())
                    strange = [name for name in known if not self._may(name, whole)]
                    self._note(strange, f"the environment of {shown}")

    def _may(self, name: str, command: str) -> bool:
        pattern = self._may_know.get(name)
        return pattern is not None and pattern.search(command) is not None

    def _look_at_pages(self) -> None:
        for url in self._spark:
            for page in ("", *_PAGES, *(f"api/v1/applications/{path}" for path in self._answers(url))):
                with suppress(OSError), urllib.request.urlopen(f"{url}/{page}", timeout=5) as answer:
                    self.seen[page.rpartition("/")[2] or page] += 1
                    self._note(self._secrets.within(answer.read()), f"Spark's page {page or '/'}")

    @staticmethod
    def _answers(url: str) -> Iterator[str]:
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"{url}/api/v1/applications", timeout=5) as answer,
        ):
            for application in json.load(answer):
                yield from (f"{application['id']}/{path}" for path in _ANSWERS)

    def _look_at_files(self) -> None:
        for path in self._folder.rglob("*"):
            with suppress(OSError):
                found = path.lstat()
                mark = found.st_mtime_ns, found.st_mode
                if not path.is_file() or self._read.get(path) == mark or found.st_size > MOST_BYTES:
                    continue
                self._read[path] = mark
                self.seen["file"] += 1
                if found.st_mode & 0o077:
                    self._note(self._secrets.within(path.read_bytes()), f"{path}, which others may read,")

    def _note(self, names: Sequence[str], where: str) -> None:
        self.sightings |= {f"{where} has {name}" for name in names}


def files_with(secrets: Secrets, folder: Path) -> dict[Path, list[str]]:
    """Every file below a folder that holds secrets, and which."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            if path.is_file() and (names := secrets.within(path.read_bytes())):
                found[path] = names
    return found
