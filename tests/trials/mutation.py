"""A mutation: a change of one expression or statement in a function, found by its syntax, not by its text.

`replace` and `by` are two expressions, or statements. `replace` must occur once in the function `within`;
line breaks and comments do not matter. `drop` is a statement to remove. In a file that is not Python,
`replace` and `by` are texts.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """The changed place, and the change. Either `drop` is set, or `replace` and `by`."""

    what: str
    file: str
    within: str = ""
    """`function`, `Class.method` or `function.nested`; empty for the whole file."""
    drop: str = ""
    replace: str = ""
    by: str = ""

    def apply(self, root: Path) -> str:
        """Return the changed text of the file under `root`; ValueError unless the place is there once."""
        text = (root / self.file).read_text()
        old, new = (self.drop, "pass") if self.drop else (self.replace, self.by)
        if self.file.endswith(".py"):
            changed = _changed(text, self.within, old.strip(), new.strip())
        else:
            changed = [text.replace(old, new)] * text.count(old)
        if len(changed) != 1:
            place = f"{self.within or 'the text'} of {self.file}"
            raise ValueError(f"{self.what}: {place} must contain this once, not {len(changed)} times: {old}")
        return changed[0]


def _changed(text: str, within: str, old: str, new: str) -> list[str]:
    """Return one text for each place of `old` in `within`: `text` with that place changed to `new`."""
    scopes: list[ast.AST] = [ast.parse(text)]
    for name in within.split(".") if within else ():
        inner = [node for scope in scopes for node in ast.walk(scope) if isinstance(node, _SCOPES)]
        scopes = [node for node in inner if node.name == name]
    pattern: Sequence[ast.expr | ast.stmt]
    if (expression := _expression(old)) is not None and _expression(new) is not None:
        pattern = [expression]
    else:
        pattern = ast.parse(old).body
    wanted = [ast.dump(node) for node in pattern]
    source = text.encode()
    lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    changed = []
    for scope in scopes:
        for nodes in _runs(scope, type(pattern[0]), len(pattern)):
            if [ast.dump(node) for node in nodes] == wanted:
                first, last = nodes[0], nodes[-1]
                assert last.end_lineno is not None
                assert last.end_col_offset is not None
                before = source[: lines[first.lineno - 1] + first.col_offset].decode()
                after = source[lines[last.end_lineno - 1] + last.end_col_offset :].decode()
                indent = "\n" + " " * first.col_offset
                put = f"({new})" if isinstance(first, ast.expr) else new.replace("\n", indent)
                changed.append(before + put + after)
    return changed


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return None


def _runs(scope: ast.AST, kind: type[ast.AST], length: int) -> Iterator[Sequence[ast.expr | ast.stmt]]:
    """Yield each expression in `scope`, and each run of `length` statements, that begins with a `kind`."""
    for node in ast.walk(scope):
        if isinstance(node, ast.expr) and isinstance(node, kind):
            yield [node]
        for _, block in ast.iter_fields(node):
            if isinstance(block, list):
                for start, first in enumerate(block[: len(block) - length + 1]):
                    if isinstance(first, ast.stmt) and isinstance(first, kind):
                        yield block[start : start + length]
