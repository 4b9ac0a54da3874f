"""Faults put into a copy of this checkout, one at a time: does the test that shows a row of the paper notice?

`make mutants` applies every mutation of tests/trials/mutants.toml, runs the one test named there and prints
what survived. A row of docs/paper.md claims what its test shows; here the test has to show it. Each rule of
the audit's verdict is taken out as well.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.trials.mutation import Mutation

REPOSITORY = Path(__file__).resolve().parents[2]
MUTANTS = REPOSITORY / "tests" / "trials" / "mutants.toml"
RULES = "broker/millrace_audit/auditor/verdict/rules.py"
PAGE = REPOSITORY / "docs" / "paper.md"
COPIED = ("broker", "plugins", "dags", "schemas", "deploy", "docs", "tests", "*.toml", "*.md", "Makefile")
WORKERS = 2
TIMEOUT_S = 300
"""A test that has not ended by then is an error: it has to fail, not to hang."""
WAIT_S = 30
"""As long as that the tests wait for what must come, with and without a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant(Mutation):
    """A mutation that `test` must notice."""

    row: int
    """A row of docs/paper.md, or 0: a mutation that is about none of them."""
    test: str

    def __str__(self) -> str:
        return f"row {self.row or '-':>2}  {self.what} ({self.test.rpartition('::')[2]})"


def read_mutants(path: Path = MUTANTS) -> list[Mutant]:
    """Every mutation, in the order of the file; TypeError for one with a field too many or too few."""
    return [Mutant(**fields) for fields in tomllib.loads(path.read_text())["mutant"]]


def rule_mutants() -> list[Mutant]:
    """A mutation for each rule of the audit's verdict: the rule finds nothing."""
    text = (REPOSITORY / RULES).read_text()
    rows = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    mutants = []
    for row in rows:
        if isinstance(row.func, ast.Name) and row.func.id == "Rule":
            name = ast.literal_eval(row.args[0])
            mutants.append(
                Mutant(
                    row=0,
                    what=f"the audit has no rule {name}",
                    file=RULES,
                    replace=ast.get_source_segment(text, row) or "",
                    by=f'Rule("{name}", NOTE, "", lambda case: (), "")',
                    test=f"tests/unit/audit/test_rules.py::test_each_rule_finds_its_example[{name}]",
                )
            )
    return mutants


def rows_of_the_page() -> dict[int, str]:
    """Row of docs/paper.md -> the cell that says what shows it."""
    found = re.findall(r"^\| (\d+) \|.*\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    return {int(row): shown for row, shown in found}


def copy_checkout(root: Path) -> None:
    """Copy what the tests need, with bytecode that is checked against the source: a mutation voids it."""
    for pattern in COPIED:
        for path in REPOSITORY.glob(pattern):
            if path.is_dir():
                # Without what was compiled: faults are put into the form in Python.
                shutil.copytree(path, root / path.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(path, root)
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiled, "broker", "plugins", "tests"], cwd=root, check=True)


def run_tests(
    root: Path, tests: Iterable[str], *options: str, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run these tests in a copy, its own packages before the installed ones."""
    options = ("-m", "soak or not soak", "--hypothesis-profile=first-failure", *options)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": f"{root}:{root / 'broker'}:{root / 'plugins'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ACCESS_LOG": "",
            "MILLRACE_WAIT_S": str(WAIT_S),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def is_noticed(mutant: Mutant, root: Path) -> bool:
    """True if the test fails with the fault, False if it passes; ValueError when it does neither."""
    path = root / mutant.file
    sound = path.read_text()
    path.write_text(mutant.apply(root))
    try:
        done = run_tests(root, [mutant.test], "-x", timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{mutant}: the test did not end within {TIMEOUT_S} s") from None
    finally:
        path.write_text(sound)
    if done.returncode not in (0, 1):
        raise ValueError(f"{mutant}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
    return done.returncode == 1


class Run:
    """Two workers, each with a copy of its own, and what they found."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.survived: list[Mutant] = []
        self.errors: list[str] = []
        self._waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for mutant in sorted(mutants, key=lambda each: "integration" not in each.test):  # the slow ones first
            self._waiting.put(mutant)

    def work(self, root: Path) -> None:
        """Take mutants until none is left."""
        while True:
            try:
                mutant = self._waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            try:
                noticed = is_noticed(mutant, root)
            except Exception as error:  # whatever it is: a mutant that nobody has tried is not noticed
                self.errors.append(f"{mutant}: {error!r}" if str(mutant) not in str(error) else str(error))
                continue
            if not noticed:
                self.survived.append(mutant)
            print(
                f"{'killed  ' if noticed else 'SURVIVED'} {time.monotonic() - began:4.0f} s  {mutant}",
                flush=True,
            )


def soundness(root: Path, tests: Sequence[str]) -> str:
    """Run the tests without any fault; return pytest's output, empty if all tests pass."""
    if not tests:  # pytest would run every test there is
        return ""
    done = run_tests(root, tests)
    return "" if done.returncode == 0 else done.stdout[-4000:]


def main() -> int:
    """Run the mutants asked for; 0 when each is noticed and each test passes without its fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.trials.mutants", description=__doc__)
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="ROW", help="rows of docs/paper.md; 0: of none"
    )
    options = parser.parse_args()
    every = [*read_mutants(), *rule_mutants()]
    mutants = [each for each in every if not options.only or each.row in options.only]
    if not mutants:
        parser.error(f"no mutant is about row {options.only}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millrace-mutants-") as folder:
        roots = [Path(folder) / str(number) for number in range(WORKERS)]
        for root in roots:
            root.mkdir()
            copy_checkout(root)
        run = Run(mutants)
        tests = sorted({each.test for each in mutants})
        unsound: list[str] = []
        halves = [
            threading.Thread(target=lambda n=n: unsound.append(soundness(roots[n], tests[n::WORKERS])))
            for n in range(WORKERS)
        ]
        _run_all(halves)
        if any(unsound) or len(unsound) < WORKERS:
            print("\n".join(unsound) + "\nMUTANTS FAILED: these tests fail without any fault")
            return 1
        _run_all([threading.Thread(target=run.work, args=(root,)) for root in roots])
    for error in run.errors:
        print(f"ERROR {error}")
    for mutant in run.survived:
        print(f"SURVIVED {mutant}")
    verdict = "FAILED" if run.survived or run.errors else "OK"
    rows = {each.row for each in mutants} - {0}
    print(
        f"MUTANTS {verdict}: rows={len(rows)} mutants={len(mutants)} survived={len(run.survived)}"
        f" seconds={time.monotonic() - began:.0f}"
    )
    return int(verdict != "OK")


def _run_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main())
