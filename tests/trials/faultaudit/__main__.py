"""Faults put in at every hop, and what the auditor says of each: `make fault-audit`.

`python -m tests.trials.faultaudit [--windows N] [--only NAME] [--seed N]`. First the matrix, on real
processes: each fault must be found, at its hop, with its sequences. Then windows without any fault, under
kills of everything: no verdict may ever be `incomplete`, and in the end all are `complete`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from millrace.errors import MillraceError
from tests.trials.faultaudit.clean import TOPICS, CleanWindows
from tests.trials.faultaudit.matrix import rows
from tests.trials.faultaudit.place import Place
from tests.trials.faultaudit.row import Row
from tests.trials.faultaudit.stage import Heard, Missed, Stage
from tests.trials.faultload.limits import StepLimits, end_at_once, end_on_signals, kill_everything_started
from tests.trials.faultload.report import Report

START_S, ROW_S = 900.0, 3_600.0
WINDOW_S, WINDOWS_S = 10.0, 1_800.0
"""For each clean window, and for all of them beside."""
"""Limits of the steps, many times what they take."""
PATIENCE_S = 2
"""Time after which the auditor reports a silent instance, or a table that is gone."""
SHOWN = 5


@dataclass(slots=True)
class Score:
    """Results for the faults that can be found."""

    faults: int = 0
    found: int = 0
    attributed: int = 0
    named: int = 0
    unseen: int = 0
    """Faults that cannot be found, and are not."""
    false_alarms: int = 0
    windows: int = 0

    @property
    def is_ok(self) -> bool:
        return self.faults == self.found == self.attributed == self.named and not self.false_alarms

    def __str__(self) -> str:
        numbers = (f"{name}={getattr(self, name)}" for name in ("faults", "found", "attributed", "named"))
        return " ".join([*numbers, f"false_alarms={self.false_alarms}", f"windows={self.windows}"])


class FaultAudit:
    """One call of `make fault-audit`."""

    def __init__(self, folder: Path, report: Report, limits: StepLimits) -> None:
        self._folder, self._report, self._limits = folder, report, limits
        self.score = Score()

    def matrix(self, chosen: Sequence[Row]) -> None:
        """Every row, one after the other, in one place."""
        faults = {row.name: row.mirror for row in chosen if row.mirror}
        with self._limits.step("the start of the place", START_S):
            place = Place(
                self._folder / "matrix",
                [row.name for row in chosen],
                schemas={row.name: row.schema for row in chosen},
                settings={row.name: row.settings for row in chosen},
                strong=[row.name for row in chosen if row.is_strong],
                mirror_faults=faults,
                uncounted=[row.name for row in chosen if not row.is_counted],
                patience_s=PATIENCE_S,
            )
        try:
            for row in chosen:
                with self._limits.step(row.what, ROW_S):
                    self._row(place, row)
        finally:
            place.kill(*place.names)
            place.write_outputs()

    def clean(self, windows: int, chance: random.Random) -> None:
        """Run windows without a fault, in another place."""
        with self._limits.step("the start of the place", START_S):
            place = Place(self._folder / "clean", [*TOPICS], schemas=TOPICS, partitions=2)
        run = CleanWindows(place, windows, chance, self._report.say)
        try:
            with self._limits.step(f"{windows} clean windows of each topic", WINDOWS_S + windows * WINDOW_S):
                self.score.windows = run.run()
        finally:
            self.score.false_alarms += len(run.alarms)
            for said in list(run.alarms.values())[:SHOWN]:
                self._report.say(f"FALSE ALARM: {said}", stays=True)
            place.kill(*place.names)
            place.write_outputs()
        kills = ", ".join(f"{name} {times}" for name, times in sorted(run.kills.items()))
        self._report.say(f"{self.score.windows} windows are complete; kills: {kills}", stays=True)
        self._report.advance("clean windows")

    def _row(self, place: Place, row: Row) -> None:
        stage = Stage(place, row.name)
        heard: Heard | None = None
        try:
            row.plant(stage)
            heard = stage.await_says(row.says)
            what = f"{row.what}: {heard}"
        except Missed as missed:
            heard = missed.heard
            what = f"NOT AS IT SHOULD BE: {row.name}, {row.what}: {missed}"
        except (AssertionError, MillraceError) as error:  # the rows behind it are planted all the same
            what = f"NOT PLANTED: {row.name}, {row.what}: {error}"
        score, is_named = self.score, heard is not None and heard.named
        if not row.unseen or heard is None:
            score.faults += 1
            score.found += heard is not None and heard.found
            score.attributed += heard is not None and heard.attributed
            score.named += is_named
        elif is_named:
            score.unseen += 1
            what = f"{row.what}: not found (docs/audit.md, {row.unseen})"
        else:
            score.false_alarms += 1
        self._report.say(what, stays=not is_named or bool(row.unseen))
        self._report.advance(row.name)


@click.command()
@click.option(
    "--windows",
    default=1000,
    show_default=True,
    help="Clean windows of each topic after the matrix; 0 for none.",
)
@click.option(
    "--only", multiple=True, help="Only rows whose name begins with this; `clean`: the clean windows."
)
@click.option("--seed", type=int, default=None, help="Repeat the decisions of an earlier run.")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Keep everything here.")
def main(windows: int, only: tuple[str, ...], seed: int | None, folder: Path | None) -> None:
    """Plant every fault and hear what the auditor says of it; then hear of windows without any."""
    chosen = [row for row in rows() if not only or row.name.startswith(only)]
    with_clean = bool(windows) and (not only or "clean" in only)
    if not chosen and not with_clean:
        raise click.BadParameter(f"no row is named so; there are {', '.join(row.name for row in rows())}")
    where = (folder or Path(tempfile.mkdtemp(prefix="millrace-fault-audit-"))).resolve()
    where.mkdir(parents=True, exist_ok=True)
    seed = seed if seed is not None else random.randrange(1 << 30)

    def failed(reason: str) -> None:
        print(f"AUDIT FAILED: {reason} (seed {seed}, everything is kept in {where})", flush=True)
        end_at_once(1)

    limits = StepLimits(lambda step, limit_s: failed(f"{step} took more than {limit_s:.0f} s"))
    end_on_signals(failed)  # type: ignore[arg-type]
    with Report(where / "events.log", len(chosen) + with_clean) as report:
        report.say(f"seed {seed}, everything is in {where}", stays=True)
        audit = FaultAudit(where, report, limits)
        try:
            if chosen:
                audit.matrix(chosen)
            if with_clean:
                audit.clean(windows, random.Random(seed))
        except Exception as error:
            (where / "error.log").write_text(traceback.format_exc())
            failed(" ".join(str(error).split())[:2000] or repr(error))
    kill_everything_started()
    if not audit.score.is_ok:
        failed(str(audit.score))
    if folder is None:
        shutil.rmtree(where, ignore_errors=True)
    if audit.score.unseen:
        print(f"{audit.score.unseen} faults are not found, as docs/audit.md says")
    print(f"AUDIT OK: {audit.score}", flush=True)


if __name__ == "__main__":
    main()
