"""Every store put back from an older copy, and what the system makes of it: `make fault-restore`.

`python -m tests.trials.faultrestore [--only NAME] [--folder FOLDER]`. Each case of `cases` has real processes
of its own: two datacenters and the aggregate cluster with three brokers, three replicas and a ZooKeeper each,
mirror, registry, readers, auditor and warehouse. No acknowledged message may be lost while a replica has it,
no hour may be called complete or carried wrongly, and no message missing that is there.
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from tests.trials.faultaudit.place import Place
from tests.trials.faultload.limits import StepLimits, end_at_once, end_on_signals, kill_everything_started
from tests.trials.faultload.report import Report
from tests.trials.faultrestore.cases import CASES, Case
from tests.trials.faultrestore.scene import BESIDE, BROKERS, PATIENCE_S, TOPIC, FalseAlarm, Lost, Scene, Wrong

START_S, CASE_S = 900.0, 1_800.0
"""Limits of the steps, many times what they take."""


@dataclass(slots=True)
class Score:
    """Outcome of the cases."""

    stores: set[str] = field(default_factory=set)
    restores: int = 0
    problems: Counter[type[Exception]] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    """Names of the cases that did not end as they must."""

    def __str__(self) -> str:
        lost, wrong, alarms = (self.problems[kind] for kind in (Lost, Wrong, FalseAlarm))
        counts = f"stores={len(self.stores)} restores={self.restores}"
        return f"{counts} lost={lost} wrong={wrong} false_alarms={alarms}"


class FaultRestore:
    """One call of `make fault-restore`."""

    def __init__(self, folder: Path, report: Report, limits: StepLimits) -> None:
        self._folder, self._report, self._limits = folder, report, limits
        self.score = Score()

    def run(self, cases: Sequence[Case]) -> None:
        """Every case, one after the other, each in a place of its own."""
        for number, case in enumerate(cases, 1):
            folder = self._folder / str(number)
            with self._limits.step(f"the start of {case.name}", START_S):
                place = Place(folder, [TOPIC, BESIDE], patience_s=PATIENCE_S, brokers=BROKERS)
            try:
                with self._limits.step(case.name, CASE_S):
                    self._run(case, Scene(place))
            finally:
                place.kill(*reversed(place.names))
                place.write_outputs()
            self._report.advance(case.name)

    def _run(self, case: Case, scene: Scene) -> None:
        try:
            case.run(scene)
            assert scene.restores, "the case has put nothing back"
            self._report.say(f"{case.store}: {case.name}", stays=True)
        except Exception as error:  # the cases behind it run all the same
            (scene.place.folder / "error.log").write_text(traceback.format_exc())
            self.score.problems[type(error)] += 1
            self.score.failed.append(case.name)
            self._report.say(
                f"FAILED: {case.store}: {case.name}: {type(error).__name__}: {error}", stays=True
            )
        self.score.stores.add(case.store)
        self.score.restores += scene.restores


@click.command()
@click.option("--only", multiple=True, help="Only cases whose store or name begins with this.")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Keep everything here.")
def main(only: tuple[str, ...], folder: Path | None) -> None:
    """Put every store back from an older copy, and hold what follows against what must."""
    chosen = [case for case in CASES if not only or case.store in only or case.name.startswith(only)]
    if not chosen:
        raise click.BadParameter(f"no case is named so; the stores are {', '.join(c.store for c in CASES)}")
    where = (folder or Path(tempfile.mkdtemp(prefix="millrace-fault-restore-"))).resolve()
    where.mkdir(parents=True, exist_ok=True)

    def failed(reason: str) -> None:
        print(f"RESTORE FAILED: {reason} (everything is kept in {where})", flush=True)
        end_at_once(1)

    limits = StepLimits(lambda step, limit_s: failed(f"{step} took more than {limit_s:.0f} s"))
    end_on_signals(failed)  # type: ignore[arg-type]
    with Report(where / "events.log", len(chosen)) as report:
        report.say(f"everything is in {where}", stays=True)
        restore = FaultRestore(where, report, limits)
        try:
            restore.run(chosen)
        except Exception as error:
            (where / "error.log").write_text(traceback.format_exc())
            failed(" ".join(str(error).split())[:2000] or repr(error))
    kill_everything_started()
    if restore.score.failed:
        failed(f"{restore.score}; {len(restore.score.failed)} of {len(chosen)} cases failed")
    if folder is None:
        shutil.rmtree(where, ignore_errors=True)
    print(f"RESTORE OK: {restore.score}", flush=True)


if __name__ == "__main__":
    main()
