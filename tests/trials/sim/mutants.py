"""Rules taken out of millrace_broker.replication, one at a time, by changing its source as it is imported."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.support import REPOSITORY
from tests.trials.mutation import Mutation


def module_of(mutation: Mutation) -> str:
    return mutation.file.removeprefix("broker/").removesuffix(".py").replace("/", ".")


def read_mutants() -> list[Mutation]:
    text = Path(__file__).with_name("mutants.toml").read_text()
    return [Mutation(**fields) for fields in tomllib.loads(text)["mutant"]]


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutation) -> None:
        super().__init__(module_of(mutant), str(REPOSITORY / mutant.file))
        self._source = mutant.apply(REPOSITORY)

    def get_code(self, fullname: str) -> CodeType:
        """The changed code: never that of the cache beside the file."""
        return compile(self._source, self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutation) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != module_of(self._mutant):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = _Loader(self._mutant)
        return spec


def install(mutant: Mutation) -> None:
    """Take the rule out of this process; its module must not be imported yet."""
    assert module_of(mutant) not in sys.modules
    sys.meta_path.insert(0, _Finder(mutant))
