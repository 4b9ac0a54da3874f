"""Rules taken out of millrace_broker.replication, one at a time, by changing its source as it is imported."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.support import REPOSITORY


@dataclass(frozen=True, slots=True)
class Mutant:
    """The text `old`, which is once in `file`, becomes `new`."""

    what: str
    file: str
    old: str
    new: str

    @property
    def module(self) -> str:
        return self.file.removeprefix("broker/").removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """The changed text of the file; ValueError when `old` is not there exactly once."""
        text = (REPOSITORY / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.what}: its old text is {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def read_mutants() -> list[Mutant]:
    text = Path(__file__).with_name("mutants.toml").read_text()
    return [Mutant(**fields) for fields in tomllib.loads(text)["mutant"]]


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(REPOSITORY / mutant.file))
        self._source = mutant.source()

    def get_code(self, fullname: str) -> CodeType:
        """The changed code: never that of the cache beside the file."""
        return compile(self._source, self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = _Loader(self._mutant)
        return spec


def install(mutant: Mutant) -> None:
    """Take the rule out of this process; its module must not be imported yet."""
    assert mutant.module not in sys.modules
    sys.meta_path.insert(0, _Finder(mutant))
