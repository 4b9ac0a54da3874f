"""Loads while everything fails: `make fault-load`, `python -m tests.trials.faultload [--loads N] [--seed N]`.

Three real brokers with three replicas of everything, registry, Spark standalone cluster and Airflow;
producers that never stop; a resident loader beside the loads; SIGKILL of drivers, executors, workers,
brokers, the resident loader and Airflow's task processes at random moments, also of brokers whose disk is
gone with them, and whose place another takes later or never; one in ten reads of the tasks cut off or failed;
speculation; publications in between; a reader that looks at the loads, the table and its branch `live` all
the time. Then power cuts. At the end the warehouse is compared with what the producers were told.

Most loads run one after the other in one Spark application, because starting one takes most of the time that
a small load does; every sixth is the real command `millrace load`, and Airflow runs that command too, at the
same time: its loads are in the count. A kill that met nothing is not. The seed repeats what is decided here;
which instruction a kill meets nobody can repeat.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from millrace_warehouse.history.layout import CATALOG
from tests.support import run_millrace
from tests.trials.faultload.airflow_runs import Airflow
from tests.trials.faultload.kills import KINDS, Kills, Saboteur
from tests.trials.faultload.limits import StepLimits, end_at_once, end_on_signals, kill_everything_started
from tests.trials.faultload.place import Place, topics_file
from tests.trials.faultload.power import PowerCuts
from tests.trials.faultload.produced import Ledger, Traffic
from tests.trials.faultload.report import Report
from tests.trials.faultload.resident import ResidentLoader
from tests.trials.faultload.runs import Application, Commands, Failed, Runs, Way
from tests.trials.faultload.waiting import shim, who_waits
from tests.trials.faultload.watch import Problem, Reader, Topic, table_rows

COMMAND_EVERY, ON_YARN_EVERY, PUBLISH_EVERY, READ_EVERY, TOPIC_EVERY = 6, 2, 3, 10, 20
"""Loads between two by a command, two by a command whose driver is on YARN, two publications, two reads by
Spark, two new topics."""
SPARE = 1.3
"""More kills are tried than are wanted: some meet nothing."""
START_S, LOAD_S, FINISH_S, COMPARE_S, CUT_S = 300.0, 1_800.0, 1_800.0, 900.0, 600.0
"""Limits of the steps, many times what they take: one that is reached means that somebody waits for ever."""
_PR_SET_CHILD_SUBREAPER = 36


class FaultLoad:
    """One run of it all."""

    def __init__(
        self,
        place: Place,
        resident: ResidentLoader,
        saboteur: Saboteur,
        report: Report,
        limits: StepLimits,
        loads: int,
        chance: random.Random,
    ) -> None:
        self.limits = limits
        self._runs = Runs(saboteur, report.say)
        self._place, self._report, self._wanted, self._chance = place, report, loads, chance
        self._resident = resident
        self._least = max(1, loads // 10)
        """Kills of each kind, at least."""
        self.kills, self._ledger = saboteur.kills, Ledger()
        self._application, self._commands = Application(place), Commands(place)
        self._plan = {kind: round(self._least * SPARE) for kind in KINDS if kind != "airflow task"}
        self._drawn = dict.fromkeys(self._plan, 0)

    def run(self) -> None:
        """The loads, with every fault; Problem or Failed when anything is wrong."""
        self._add_topic()
        self._add_topic()
        traffic = [
            Traffic(
                self._ledger,
                self._place.site.producer,
                self._place.topics,
                server,
                random.Random(self._chance.random()),
                self._report.say,
            ).start()
            for server in ("web1", "web2")
        ]
        reader = Reader(
            self._place.warehouse, self._place.topics, self._ledger, random.Random(self._chance.random())
        ).start()
        airflow = Airflow(
            self._place, self.kills, self._least, random.Random(self._chance.random()), self._report.say
        ).start()
        self._loads(reader, airflow)
        with self.limits.step("the last load and the last publications", FINISH_S):
            self._finish(traffic, airflow)
            reader.stop()
        self._check(reader, airflow, traffic)
        self._application.close()
        with self.limits.step("the comparison", COMPARE_S):
            self._compare()
        self._say_what_happened(reader, airflow)

    def _loads(self, reader: Reader, airflow: Airflow) -> None:
        number = 0
        while number + airflow.runs < self._wanted or airflow.running or self._missing():
            if number > 3 * self._wanted:
                raise Failed(f"after {number} loads there are still too few kills: {dict(self.kills.done)}")
            number += 1
            with self.limits.step(f"load {number}, with what follows it", LOAD_S):
                self._one_load(number)
            self._resident.check()
            if reader.problem is not None:
                raise Problem(reader.problem)
            if airflow.problem is not None:
                raise Failed(airflow.problem)

    def _one_load(self, number: int) -> None:
        """A load, and what there is only after some of them."""
        runs = self._runs
        if number % TOPIC_EVERY == 0:
            self._add_topic()
        every = ON_YARN_EVERY if self._place.yarn else COMMAND_EVERY
        way: Way = self._commands if number % every == 0 else self._application
        fault = self._draw(number)
        began = time.monotonic()
        runs.load(way, self._place.topics, fault)
        took = time.monotonic() - began
        self._report.advance(f"load {number} by {way.name}, {fault or 'undisturbed'}: {took:.1f} s")
        if number % PUBLISH_EVERY == 0:
            topic = self._chance.choice(self._place.topics)
            runs.publish(self._commands, topic, self._draw(number))
            self._report.say(f"{topic} is published")
        if number % READ_EVERY == 0:
            self._read_with_spark()

    def _draw(self, number: int) -> str | None:
        """Choose what to kill in the next run: the kind missing most, spread over the runs that are left."""
        missing = {kind: self._plan[kind] - self.kills.done[kind] for kind in self._plan}
        missing = {kind: count for kind, count in missing.items() if count > 0}
        runs_left = max(1, (self._wanted - number) * (1 + 1 / PUBLISH_EVERY))
        if not missing or self._chance.random() > 1.5 * sum(missing.values()) / runs_left:
            return None
        return self._chance.choices(list(missing), list(missing.values()))[0]

    def _missing(self) -> list[str]:
        return [kind for kind in self._plan if self.kills.done[kind] < self._least]

    def _add_topic(self) -> None:
        self._place.replace_brokers()  # as many as the topic is to have replicas
        name = self._place.add_topic(partitions=self._chance.randint(2, 4))
        topics_file(self._place)
        self._resident.restart()
        self._report.say(f"topic {name} is new")

    def _read_with_spark(self) -> None:
        topic = self._place.topics[0]
        try:
            seen = self._application.run("read", {"warehouse": str(self._place.warehouse), "topic": topic})
        except Exception as error:  # its own driver may have been killed in the run before
            self._report.say(f"no read by Spark: {str(error)[:100]}")
            return
        if seen["rows"] != seen["distinct"]:
            raise Problem(f"Spark reads {seen['rows']} rows of {topic}, {seen['distinct']} of them distinct")
        self._report.say(f"Spark reads {seen['rows']} rows of {topic}, each once")

    def _finish(self, traffic: list[Traffic], airflow: Airflow) -> None:
        """No more faults and no more events; then everything into the loads and the tables."""
        self._place.stop_flaky_reads()
        airflow.stop()
        for each in traffic:
            each.stop()
        self._resident.stop()
        self._runs.load(self._commands, self._place.topics, None)
        for topic in self._place.topics:
            self._runs.publish(self._commands, topic, None)
        self._report.say("the last load is made, and everything is published")

    def _check(self, reader: Reader, airflow: Airflow, traffic: list[Traffic]) -> None:
        if reader.problem is not None:
            raise Problem(reader.problem)
        if not reader.live_looks:
            raise Failed("the reader has never seen branch live")
        for problem in (airflow.problem, *(each.problem for each in traffic)):
            if problem is not None:
                raise Failed(problem)

    def _compare(self) -> None:
        """Compare the warehouse, read anew, with the acknowledged events; then run `verify`."""
        warehouse = self._place.warehouse
        lost = 0
        for topic in self._place.topics:
            read = Topic(warehouse, topic, self._ledger)
            read.look(self._chance)
            loads = read.seen
            branches = table_rows(warehouse / CATALOG, topic)
            for branch in ("main", "live"):
                if branch not in branches or branches[branch].sequences != loads:
                    raise Problem(f"branch {branch} of {topic} does not hold the rows of the loads")
            found = {instance: sequences for (instance, _), sequences in loads.items()}
            for instance, sequences in self._ledger.acknowledged(topic).items():
                lost += len(sequences - found.get(instance, set()))
        if lost:
            raise Problem(f"lost={lost} events that were acknowledged")
        bootstrap = self._place.site.cluster.bootstrap
        verified = run_millrace(
            "verify",
            "--warehouse",
            str(warehouse),
            "--bootstrap",
            bootstrap,
            "--rows",
            "--json",
            timeout_s=600,
        )
        if verified.returncode != 0:
            raise Problem(f"verify: {verified.stderr.strip().splitlines()[-1]}")

    def _say_what_happened(self, reader: Reader, airflow: Airflow) -> None:
        handed, acknowledged = self._ledger.totals()
        reads, say = self._place.reads(), partial(self._report.say, stays=True)
        bad = reads["c"] + reads["f"]
        loads = sum(len(topic.loads) for topic in reader.topics.values())
        say(f"events: {handed} produced, {acknowledged} acknowledged")
        say(f"in the warehouse: {loads} loads of {len(reader.topics)} topics")
        say(f"reads of tasks: {reads.total()}, {bad} failed ({reads['c']} cut, {reads['f']} with the task)")
        say(f"speculative tasks: {self._place.speculative_tasks()}; looks of the reader: {reader.looks}")
        say(f"looks at branch live: {reader.live_looks}; starts of its loader: {self._resident.starts}")
        say(f"runs of Airflow: {airflow.runs}; drivers of the long application: {self._application.starts}")
        say("kills: " + ", ".join(f"{kind} {self.kills.done[kind]}" for kind in KINDS))


class Run:
    """One call of `make fault-load`: its parts, in order, and its end at once when a step takes too long."""

    def __init__(
        self, folder: Path, loads: int, power_cuts: int, seed: int, *, yarn: bool, kerberos: bool
    ) -> None:
        self._folder, self._loads, self._cuts, self._seed = folder, loads, power_cuts, seed
        self._yarn, self._kerberos = yarn, kerberos
        self._place: Place | None = None
        self.limits = StepLimits(self._overdue)

    def through(self) -> int:
        """Run it all; the number of kills. Problem or Failed when anything is wrong."""
        chance, limits = random.Random(self._seed), self.limits
        with Report(self._folder / "events.log", self._loads + self._cuts) as report:
            report.say(f"seed {self._seed}, everything is in {self._folder}", stays=True)
            with limits.step("the start of ZooKeeper, brokers, registry and Spark", START_S):
                place = self._place = Place(self._folder, on_yarn=self._yarn, kerberos=self._kerberos)
            resident = ResidentLoader(place)
            saboteur = Saboteur(place, resident.kill, Kills(report.say), chance)
            run = FaultLoad(place, resident, saboteur, report, limits, self._loads, chance)
            cuts = PowerCuts(place, chance, report.say)  # its topic is there before a broker is gone for good
            run.run()
            for number in range(1, self._cuts + 1):
                with limits.step(f"power cut {number}", CUT_S):
                    cuts.round()
                report.advance(f"power cut {number}: nothing lost, nothing twice")
            if self._cuts:
                report.say(f"the power cuts took {cuts.lost}", stays=True)
        return run.kills.total

    def failed(self, reason: str) -> NoReturn:
        """Say why, and end with everything that was started."""
        print(
            f"FAULT-LOAD FAILED: {reason} (seed {self._seed}, everything is kept in {self._folder})",
            flush=True,
        )
        end_at_once(1)

    def _overdue(self, step: str, limit_s: float) -> None:
        try:
            with (self._folder / "waiting.log").open("w") as log:
                for line in who_waits(self._folder, self._place.spark.state() if self._place else None):
                    print(line, flush=True)
                    log.write(f"{line}\n")
        except Exception:  # without the report, but it must end
            traceback.print_exc()
        self.failed(f"{step} took more than {limit_s:.0f} s: who waits for what is above, and in waiting.log")


@click.command()
@click.option("--loads", default=100, show_default=True, help="Loads, those of Airflow included.")
@click.option("--power-cuts", default=20, show_default=True, help="Power cuts after them.")
@click.option("--seed", type=int, default=None, help="Repeat the decisions of an earlier run.")
@click.option("--yarn", is_flag=True, help="Drivers of commands run on YARN.")
@click.option("--kerberos", is_flag=True, help="YARN asks for Kerberos tickets.")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Keep everything here.")
def main(
    loads: int, power_cuts: int, seed: int | None, yarn: bool, kerberos: bool, folder: Path | None
) -> None:
    """Load while everything fails, and compare with what was produced."""
    # What a killed process has started must end with us.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    where = (folder or Path(tempfile.mkdtemp(prefix="millrace-fault-load-"))).resolve()
    where.mkdir(parents=True, exist_ok=True)
    seed = seed if seed is not None else random.randrange(1 << 30)
    os.environ.update(shim(where))  # for every process that is started from here on
    run = Run(where, loads, power_cuts, seed, yarn=yarn, kerberos=kerberos)
    end_on_signals(run.failed)
    try:
        kills = run.through()
    except Exception as error:
        (where / "error.log").write_text(traceback.format_exc())
        run.failed(" ".join(str(error).split())[:500] or repr(error))
    kill_everything_started()
    if folder is None:
        shutil.rmtree(where, ignore_errors=True)
    print(f"FAULT-LOAD OK: kills={kills} lost=0 duplicated=0", flush=True)


if __name__ == "__main__":
    main()
