"""Faults around a publication, and the mark of the hour in the table of hours and the properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millrace_audit.answer import Verdict, utc
from millrace_audit.client import completeness
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS
from millrace_audit.reports.messages import WAREHOUSE
from millrace_warehouse.history.hours import start_of
from millrace_warehouse.publish.catalog import connect, load_table, table_identifier
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.table import COMPLETE_UNTIL
from millrace_warehouse.storage import open_storage
from tests.support import Process, run_millrace
from tests.trials.faultaudit import forging
from tests.trials.faultaudit.batches import BATCH
from tests.trials.faultaudit.row import HOME, Row
from tests.trials.faultaudit.stage import START, Says, Stage

HOUR = "2015-05-17T10"
"""Hour of both windows of a stage."""
PROVEN = "complete until 2015-05-17T11"
"""Mark of the hour after a publication as complete."""
WELL = Says(verdict=Verdict.COMPLETE)
_TWICE = [("duplicate", HOME, "10-19")]
_SKIPPED = [("missing", WAREHOUSE, "10-19")]
_SILENT = "reported through sequence 19 here, and 20 events are counted that it never reported"


def rows() -> Iterator[Row]:
    yield Row(
        name="published-incomplete",
        what="a load skips messages 10 to 19, the hour is published by its name, then as proven",
        plant=lambda stage: _published_by_name(stage, "drop"),
        says=Says(findings=_SKIPPED, sentence="^incomplete until nothing; incomplete until nothing$"),
    )
    yield Row(
        name="published-miscounted",
        what="a load counts 10 rows too few, the hour is published by its name, then as proven",
        plant=lambda stage: _published_by_name(stage, "miscount"),
        says=replace(WELL, sentence="^incomplete until nothing; incomplete until nothing$"),
    )
    yield Row(
        name="published-taken-back",
        what="a stranger sends messages 10 to 19 again after their hour was published as complete",
        plant=_taken_back,
        says=Says(findings=_TWICE, sentence=f"^{PROVEN}; incomplete until {HOUR}$"),
    )
    yield Row(
        name="published-before-silence",
        what="a producer is killed in the hour after one that was published as complete",
        plant=_silent_in_the_next_hour,
        says=Says(
            verdict=Verdict.UNKNOWN, reason=_SILENT, sentence=f"^{PROVEN}; {PROVEN}; complete, complete$"
        ),
    )


def publish(stage: Stage, *options: str) -> str:
    """Publish the hours that the options name, if the auditor agrees; return the output of the command."""
    asked = ("--warehouse", str(stage.place.warehouse), "--auditor", stage.place.auditor_url)
    done = run_millrace("publish", stage.topic, *asked, *options)
    return done.stdout + done.stderr


def mark(stage: Stage) -> str:
    """Return the hour's newest verdict in the table of hours, and the end of the complete hours."""
    with connect(open_storage(str(stage.place.warehouse)), create=False) as catalog:
        table = load_table(catalog, table_identifier(stage.topic))
        hours = load_table(catalog, hours_identifier(stage.topic))
        if table is None or hours is None:
            return "no table"
        rows = hours.scan().to_arrow().to_pylist()
    changes = [(row["publication"], row["verdict"]) for row in rows if row["hour"] == start_of(HOUR)]
    verdict = max(changes)[1] if changes else "not published"
    return f"{verdict} until {table.properties[COMPLETE_UNTIL] or 'nothing'}"


def publish_proven(stage: Stage) -> str:
    """Publish the hour if the auditor calls it proven, and return its mark."""
    publish(stage, "--proven")
    return mark(stage)


def _published_by_name(stage: Stage, fault: str) -> None:
    stage.traffic()
    stage.load(fault)
    stage.await_tier(WAREHOUSE, 50)
    publish(stage, "--hour", HOUR)
    stage.sentence = f"{mark(stage)}; {publish_proven(stage)}"


def published_complete(stage: Stage) -> None:
    """Publish the hour of the loaded traffic; `sentence` is the hour's mark."""
    stage.traffic()
    stage.load()
    stage.await_says(WELL)
    stage.sentence = publish_proven(stage)


def _taken_back(stage: Stage) -> None:
    stage.begin()
    sent = forging.messages(stage.place, HOME, stage.topic)[BATCH : 2 * BATCH]
    stage.end()
    stage.load()
    stage.await_says(WELL)
    before = publish_proven(stage)
    forging.write(stage.place, HOME, stage.topic, sent)
    stage.await_says(Says(findings=_TWICE))
    stage.load()
    stage.sentence = f"{before}; {publish_proven(stage)}"


def _silent_in_the_next_hour(stage: Stage) -> None:
    published_complete(stage)
    stage.start += HOUR_MS
    place = stage.place
    words = [place.clusters[HOME].bootstrap, place.registry, HOME, stage.topic, str(stage.start)]
    process = Process(words, module="tests.trials.faultaudit.doomed_producer")
    assert process.wait() < 0, f"the producer was not killed:\n{process.output}"
    stage.elsewhere()
    stage.load()
    stage.await_says(Says(verdict=Verdict.UNKNOWN, reason=_SILENT))
    earlier = completeness(place.auditor_url, stage.topic, utc(START), utc(START + 2 * WINDOW_MS))
    verdicts = ", ".join(window.verdict for window in earlier.windows)
    stage.sentence += f"; {publish_proven(stage)}; {verdicts}"
