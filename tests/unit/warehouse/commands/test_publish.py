"""`millrace publish`, `compact` and `tables`: what they take, what they print, how they end."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from millrace.errors import ConfigError, MillraceError
from millrace.records import Message
from millrace_audit.answer import Changes, Completeness, Finding, JudgedHour, Window, overall
from millrace_audit.show import print_completeness
from millrace_warehouse.commands import auditor as asking
from millrace_warehouse.commands import execute
from millrace_warehouse.commands.publishing import _outcome, compact, publish, tables
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.requests import Publish
from millrace_warehouse.storage import open_storage
from tests.counted import counted_loads
from tests.unit.warehouse.load.test_formats import ORDERS, order, topic_of
from tests.unit.warehouse.load.test_formats import loaded as load_orders
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, MemoryLog, filled_log, load_run

HOURS = ["2015-05-17T10", "2015-05-17T11", "2015-05-17T12"]
AUDITOR = "http://127.0.0.1:1"


def on(warehouse: Path, command: Any, *words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--warehouse", str(warehouse)])


def answers(warehouse: Path, command: Any, *words: str) -> list[dict[str, Any]]:
    """Return the JSON answers of a command that succeeds."""
    done = on(warehouse, command, *words, "--json")
    assert done.exit_code == 0, done.exception
    said: list[dict[str, Any]] = json.loads(done.stdout)
    return said


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    """A warehouse with one load of three hours: 87, 38 and 55 rows."""
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Publish]:
    """Keep the requests that the command hands over; nothing is published."""
    seen: list[Publish] = []

    def publish_one(request: Publish, topic: str, progress: Callable[[str], None]) -> dict[str, Any]:
        seen.append(request)
        none = {**dict.fromkeys(("publication", "complete_from", "complete_until", "rows")), "hours": 0}
        return {
            "topic": topic,
            "table": "t",
            "published": False,
            "changes": [],
            "waiting": [],
            "notes": [],
            **none,
        }

    monkeypatch.setattr(execute, "publish_one", publish_one)
    return seen


def auditor(
    monkeypatch: pytest.MonkeyPatch,
    warehouse: Path,
    enough: str = "complete",
    age: timedelta = timedelta(),
    incident: str = "",
    **verdicts: str,
) -> list[str]:
    """An auditor that says of each hour what is given as `h10="complete"`; the hours it was asked about.

    It has counted every load of the warehouse, and applied everything `age` ago.
    """
    seen: list[str] = []

    def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        starts = hours_from(start, end)
        seen.extend(f"{each:%Y-%m-%dT%H}" for each in starts)
        loads = counted_loads(open_storage(str(warehouse)), topic)
        windows = [window(each, verdicts[f"h{each:%H}"]) for each in starts]
        if incident:
            bad = {"unknown", "incomplete"}
            windows = [replace(w, incidents=[incident]) if w.verdict in bad else w for w in windows]
        return Completeness(
            topic,
            start,
            end,
            overall(window.verdict for window in windows),
            None,
            windows,
            enough=enough,
            applied_at=datetime.now(UTC) - age,
            hours=[JudgedHour(each, loads.get(f"{each:%Y-%m-%dT%H}", ())) for each in starts],
        )

    monkeypatch.setattr(asking, "completeness", completeness)
    monkeypatch.setattr(asking, "changes", lambda *_: Changes("1", [], more=False))
    return seen


def hours_from(start: datetime, end: datetime) -> list[datetime]:
    return [start + timedelta(hours=hour) for hour in range((end - start) // timedelta(hours=1))]


def window(start: datetime, verdict: str) -> Window:
    return Window(start, start + timedelta(minutes=10), verdict, 0, 0, 0, {}, [], [])


def test_hours_that_are_named_are_published_and_the_others_are_listed(loaded: Path) -> None:
    done = on(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0])
    assert done.exit_code == 0, done.output
    assert "publication 1 of millrace.PageView changed 1 hour(s)" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if HOURS[0] in line]
    assert line.split()[-2:] == ["unasked", "first"]
    assert f"waits: {TOPIC} {HOURS[2]}: 55 rows, the auditor was not asked" in done.stderr


def test_hours_that_wait_for_the_end_of_one_incident_share_a_line(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor(
        monkeypatch,
        loaded,
        incident="producer-silent:producer 7",
        h10="complete",
        h11="unknown",
        h12="unknown",
    )
    done = on(loaded, publish, TOPIC, "--proven", "--auditor", AUDITOR)
    assert [line for line in done.stderr.splitlines() if line.startswith("waits: ")] == [
        f"waits: {TOPIC} 2 hours from {HOURS[1]} to {HOURS[2]}: 93 rows, unknown [producer-silent:producer 7]"
    ]


def test_a_repeated_run_changes_nothing_and_says_so(loaded: Path) -> None:
    (first,) = answers(loaded, publish, TOPIC, "--unasked", "--from", HOURS[0], "--to", "2015-05-17T13")
    assert (first["published"], first["publication"], first["waiting"]) == (True, 1, [])
    assert (len(first["changes"]), first["rows"]) == (3, 180)
    (again,) = answers(loaded, publish, TOPIC, "--unasked", "--from", HOURS[0], "--to", "2015-05-17T13")
    assert (again["published"], again["publication"], again["changes"]) == (False, 1, [])
    done = on(loaded, publish, TOPIC, "--unasked")
    assert done.stdout == f"{TOPIC}: millrace.PageView has nothing to change; 180 rows\n"


def test_a_run_whose_answer_nobody_heard_tells_again_what_it_published(loaded: Path) -> None:
    words = [TOPIC, "--unasked", "--hour", HOURS[0], "--run-id", "task-1"]
    (first,) = answers(loaded, publish, *words)
    (again,) = answers(loaded, publish, *words)
    assert again["published"]
    assert [change["hour"] for change in again["changes"]] == [HOURS[0]]
    assert again["sha256"] == first["sha256"]


def test_it_tells_again_though_others_have_published_since_and_with_what_it_publishes_now(
    loaded: Path,
) -> None:
    words = [TOPIC, "--unasked", "--hour", HOURS[0], "--run-id", "task-1"]
    answers(loaded, publish, *words)
    (other,) = answers(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[1], "--run-id", "task-2")
    assert [change["hour"] for change in other["changes"]] == [HOURS[1]]
    words[3] = HOURS[2]
    (again,) = answers(loaded, publish, *words)
    assert (again["published"], again["publication"]) == (True, 3)
    assert [change["hour"] for change in again["changes"]] == [HOURS[0], HOURS[2]]


def test_a_folder_for_numbers_that_cannot_be_made_is_refused_before_anything_is_published(
    loaded: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "metrics"
    refused = on(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0], "--metrics-dir", str(folder))
    assert refused.exit_code == 1
    assert f"--metrics-dir {folder} cannot be created" in str(refused.exception)
    (answer,) = answers(loaded, publish, TOPIC, "--unasked")
    assert answer["publication"] is None


def test_a_publication_leaves_its_numbers_for_prometheus(loaded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "metrics"
    words = (TOPIC, "--unasked", "--hour", HOURS[0], "--metrics-dir", str(folder))
    before = time.time()
    assert on(loaded, publish, *words).exit_code == 0
    on(loaded, publish, "Missing", "--unasked", "--metrics-dir", str(folder))  # fails, and leaves nothing
    (file,) = folder.iterdir()
    assert file.name == "millrace_publish_PageView.prom"
    (answer,) = answers(loaded, publish, TOPIC, "--unasked")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    numbers = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    done = numbers['millrace_job_success_seconds{command="publish",topic="PageView"}']
    assert before <= done <= time.time()
    assert numbers['millrace_table_rows{topic="PageView"}'] == answer["rows"] > 0
    assert numbers['millrace_table_waiting_hours{topic="PageView"}'] == len(answer["waiting"])
    committed = numbers['millrace_table_committed_seconds{topic="PageView"}']
    assert committed == datetime.fromisoformat(answer["created"]).timestamp()


def test_late_rows_need_no_option(tmp_path: Path) -> None:
    log = filled_log()
    load_topic(load_run(log, tmp_path), TOPIC)
    answers(tmp_path, publish, TOPIC, "--unasked", "--hour", HOURS[0])
    log.append_events(0, [START + 1, START + 2])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    (late,) = answers(tmp_path, publish, TOPIC, "--unasked")
    (change,) = late["changes"]
    assert (change["hour"], change["kind"], change["added"]) == (HOURS[0], "late", 2)


def test_a_carried_hour_is_published_as_proven_where_that_is_enough_and_its_verdict_says_so(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [TOPIC, "--auditor", AUDITOR, "--proven"]
    auditor(monkeypatch, loaded, h10="carried", h11="carried", h12="pending")
    (waits,) = answers(loaded, publish, *words)
    assert [hour["verdict"]["verdict"] for hour in waits["waiting"]] == ["carried", "carried", "pending"]
    auditor(monkeypatch, loaded, "carried", h10="carried", h11="carried", h12="pending")
    (done,) = answers(loaded, publish, *words)
    assert [change["hour"] for change in done["changes"]] == HOURS[:2]
    assert done["complete_until"] == HOURS[2]
    verdict = done["changes"][0]["verdict"]
    assert verdict["verdict"] == "complete"
    assert verdict["reasons"] == ["carried, which this topic accepts as proof"]


def test_a_carried_hour_is_printed_as_carried_where_that_is_enough(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor(monkeypatch, loaded, "carried", h10="carried", h11="complete", h12="pending")
    done = on(loaded, publish, TOPIC, "--auditor", AUDITOR, "--proven")
    printed = dict(re.findall(r"(2015-05-17T1\d) .* (\w+) +first", done.stdout))
    assert printed == {HOURS[0]: "carried", HOURS[1]: "complete"}
    assert f"proven from {HOURS[0]} until {HOURS[2]}" in done.stdout


def test_an_hour_filed_by_a_field_is_never_complete_because_carried_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = topic_of(order(1, placedAt=START))
    load_orders(log, tmp_path)
    auditor(monkeypatch, tmp_path, "carried", h10="carried", h11="carried")
    words = [ORDERS, "--auditor", AUDITOR, "--proven"]
    (waits,) = answers(tmp_path, publish, *words)
    (hour,) = waits["waiting"]
    assert (hour["hour"], hour["verdict"]["verdict"]) == (HOURS[0], "carried")
    assert hour["verdict"]["reasons"] == [
        "rows are filed by placedAt, and judged by the record's time: later messages may add rows to this"
        " hour; publish it with --unproven-after or --hour"
    ]
    (done,) = answers(tmp_path, publish, *words, "--unproven-after", "1h")
    assert [change["verdict"]["verdict"] for change in done["changes"]] == ["carried"]
    assert done["complete_until"] is None
    log.append(0, [Message(START + HOUR, b"k", order(2, placedAt=START))])  # the reason for all this
    load_orders(log, tmp_path, run_id="run-2")
    (late,) = answers(tmp_path, publish, *words)
    assert [(change["hour"], change["kind"], change["added"]) for change in late["changes"]] == [
        (HOURS[0], "late", 1)
    ]


def test_an_hour_filed_by_a_field_is_complete_if_producers_have_reported_every_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_orders(topic_of(order(1, placedAt=START)), tmp_path)
    auditor(monkeypatch, tmp_path, "carried", h10="complete")
    (done,) = answers(tmp_path, publish, ORDERS, "--auditor", AUDITOR, "--proven")
    assert done["complete_until"] == HOURS[1]


def test_the_proven_hours_are_published_and_the_others_wait_with_their_verdict(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor(monkeypatch, loaded, h10="complete", h11="incomplete", h12="unknown")
    done = on(loaded, publish, TOPIC, "--auditor", AUDITOR, "--proven")
    assert done.exit_code == 0, done.output
    assert f"{HOURS[0]}" in done.stdout
    assert "proven from 2015-05-17T10 until 2015-05-17T11" in done.stdout
    assert f"{HOURS[1]}: " in done.stderr
    assert "incomplete" in done.stderr
    (old,) = answers(loaded, publish, TOPIC, "--auditor", AUDITOR, "--unproven-after", "1d")
    assert [change["hour"] for change in old["changes"]] == [HOURS[2]]
    assert [hour["hour"] for hour in old["waiting"]] == [HOURS[1]]


def test_the_printed_range_of_proven_hours_begins_after_an_incomplete_hour(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor(monkeypatch, loaded, h10="incomplete", h11="complete", h12="complete")
    first = on(loaded, publish, TOPIC, "--auditor", AUDITOR, "--hour", HOURS[0])
    assert first.stdout.endswith("changed 1 hour(s); 87 rows\n")
    done = on(loaded, publish, TOPIC, "--auditor", AUDITOR, "--proven")
    assert done.stdout.endswith(f"180 rows, proven from {HOURS[1]} until 2015-05-17T13\n")


def test_a_range_of_proven_hours_that_has_become_empty_is_not_printed() -> None:
    answer = {"hours": 0, "table": "t", "rows": 1, "complete_from": HOURS[0], "complete_until": HOURS[0]}
    assert _outcome(answer) == "t has nothing to change; 1 rows"


def test_an_auditor_that_has_stopped_applying_records_proves_nothing(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor(monkeypatch, loaded, age=timedelta(minutes=11), h10="complete", h11="complete", h12="complete")
    (waits,) = answers(loaded, publish, TOPIC, "--auditor", AUDITOR, "--proven")
    assert {hour["verdict"]["verdict"] for hour in waits["waiting"]} == {"unknown"}
    assert "has applied no audit records since" in waits["waiting"][0]["verdict"]["reasons"][0]


def test_an_auditor_that_does_not_name_the_loads_it_counted_proves_nothing(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        windows = [window(each, "complete") for each in hours_from(start, end)]
        return Completeness(topic, start, end, "complete", None, windows)

    monkeypatch.setattr(asking, "completeness", completeness)
    monkeypatch.setattr(asking, "changes", lambda *_: Changes("1", [], more=False))
    (waits,) = answers(loaded, publish, TOPIC, "--auditor", AUDITOR, "--proven")
    assert {hour["verdict"]["verdict"] for hour in waits["waiting"]} == {"unknown"}
    assert "older than this publisher" in waits["waiting"][0]["verdict"]["reasons"][0]


def test_a_dry_run_says_what_it_would_do_and_does_nothing(loaded: Path) -> None:
    done = on(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0], "--dry-run")
    assert "would change 1 hour(s) of millrace.PageView" in done.stdout
    (first,) = answers(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0])
    assert first["publication"] == 1


def test_the_steps_of_a_publication_are_lines_for_a_log(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "SHORT_S", "OFTEN_S"):
        monkeypatch.setattr(f"millrace.steps.{name}", 0.0)
    done = on(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0], "--json")
    lines = done.stderr.splitlines()
    assert f"step: publish {TOPIC}: committed" in lines
    figures = r"1 of 1 loads added \(100%\), [\d,]+ rows, [\d.]+ kB, 0 s"
    assert any(re.fullmatch(f"step: publish {TOPIC}: {figures}", line) for line in lines)
    assert json.loads(done.stdout)[0]["published"] is True
    assert all(line.startswith(f"step: publish {TOPIC}: ") for line in lines)


def test_a_topic_that_fails_does_not_stop_the_others_and_is_the_error(loaded: Path) -> None:
    done = on(loaded, publish, "Typo", TOPIC, "--unasked", "--hour", HOURS[0], "--json")
    assert isinstance(done.exception, MillraceError)
    assert str(done.exception).startswith("no load of Typo in ")
    failed, published = json.loads(done.stdout)
    assert failed == {"topic": "Typo", "error": str(done.exception)}
    assert published["published"]


def test_the_options_reach_the_publisher(asked: list[Publish], tmp_path: Path) -> None:
    words = ["--from", "2015-05-17T10:00:00+02:00", "--to", "2015-05-17T10:00:00Z", "--catalog", "lake"]
    auditor = ["--auditor", AUDITOR, "--proven", "--unproven-after", "3d", "--rebuild", "--run-id", "mine"]
    assert on(tmp_path, publish, "A", "B", "A", *words, *auditor).exit_code == 0
    (request, _) = asked
    assert request.topics == ["A", "B"]
    assert request.hours == ["2015-05-17T08", "2015-05-17T09"]
    assert (request.proven, request.unproven_after_s, request.rebuild) == (True, 259_200, True)
    assert (request.catalog, request.run_id, request.auditor) == ("lake", "mine", AUDITOR)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no auditor is named: give --auditor URL, or --unasked"),
        (["--proven", "--unasked"], "--proven and --unproven-after need the auditor's verdict"),
        (["--unproven-after", "1d", "--unasked"], "need the auditor's verdict"),
        (["--unasked", "--from", "2015-05-17T10"], "give either --hour"),
        (["--unasked", "--from", "2015-05-17T10:30", "--to", "2015-05-17T12"], "is not a whole hour in UTC"),
        (["--unasked", "--unproven-after", "soon"], "is not an age like"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(
    asked: list[Publish], tmp_path: Path, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLRACE_AUDITOR", raising=False)
    refused = on(tmp_path, publish, "A", *words)
    assert isinstance(refused.exception, ConfigError)
    assert says in str(refused.exception)
    assert asked == []


def test_the_auditor_may_come_from_the_environment(
    asked: list[Publish], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_AUDITOR", "http://u:secret@a")
    assert on(tmp_path, publish, "A").exit_code == 0
    assert asked[0].auditor == "http://u:secret@a"
    assert "secret" not in repr(asked[0])


def test_a_topic_with_nothing_to_compact_says_so(loaded: Path) -> None:
    answers(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0])
    done = on(loaded, compact, TOPIC)
    assert done.stdout == f"{TOPIC}: no quiet hour has more than 8 small files\n"


def test_the_table_is_described_with_a_line_for_each_reader_that_reads_it(loaded: Path) -> None:
    answers(loaded, publish, TOPIC, "--unasked", "--hour", HOURS[0], "--hour", HOURS[2])
    (table,) = answers(loaded, tables, TOPIC)
    assert (table["table"], table["publication"], table["rows"]) == ("millrace.PageView", 1, 142)
    assert table["published"] == f"{HOURS[0]} to 2015-05-17T13", "half-open, as is `complete`"
    assert (table["through_load"], table["loads_behind"]) == (1, 0)
    assert (table["waiting_hours"], table["waiting_rows"]) == (1, 38)
    line = table["readers"]["pandas"]
    _, *words = shlex.split(line)
    read = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, timeout=60)
    assert "[142 rows x " in read.stdout
    shown = on(loaded, tables, TOPIC)
    assert shown.exit_code == 0, shown.output
    assert line in shown.stdout


def test_a_table_that_was_never_published_names_the_command_that_does(loaded: Path) -> None:
    refused = on(loaded, tables, TOPIC)
    assert isinstance(refused.exception, MillraceError)
    assert f"`millrace publish {TOPIC}`" in str(refused.exception)


@pytest.mark.parametrize("command", [publish, compact, tables])
def test_every_command_s_help_has_an_example(command: Any) -> None:
    assert "Example: millrace" in CliRunner().invoke(command, ["--help"]).stdout


def test_the_verdict_of_an_hour_is_the_auditors_with_each_reason_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {
        "start": "2015-05-17T10:00:00Z",
        "end": "2015-05-17T10:10:00Z",
        "verdict": "unknown",
        "revision": 0,
        "acknowledged": 1,
        "failed": 0,
        "tiers": {"dc1": 1},
        "findings": [],
        "reasons": ["web1 is silent"],
    }
    seen: list[tuple[str, str, str, str]] = []

    def answer(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        seen.append((url, topic, start.isoformat(), end.isoformat()))
        times = {"from": start.isoformat(), "to": end.isoformat(), "watermark": "2015-05-17T09:50:00+00:00"}
        return Completeness.from_json(
            {"topic": topic, "verdict": "unknown", "windows": [said, said], **times}
        )

    monkeypatch.setattr(asking, "completeness", answer)
    verdict = asking.auditor_at("http://auditor").judge(TOPIC, HOURS[:1])[HOURS[0]].verdict
    assert (verdict.verdict, verdict.watermark) == ("unknown", "2015-05-17T09:50:00+00:00")
    assert verdict.reasons == ["web1 is silent"]
    assert seen == [("http://auditor", TOPIC, "2015-05-17T10:00:00+00:00", "2015-05-17T11:00:00+00:00")]


def test_a_refused_hour_has_the_causes_that_the_audit_prints_the_worst_windows_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = datetime(2015, 5, 17, 10, tzinfo=UTC)
    lost = Finding("missing", "offline", "web-1", "checkout", 7, [[3, 5]], 3)

    def window(number: int, verdict: str, *findings: Finding, reason: str) -> Window:
        begin = start + timedelta(minutes=10 * number)
        end = begin + timedelta(minutes=10)
        return Window(begin, end, verdict, 0, 9, 0, {"dc1": 9}, findings, [reason])

    windows = [
        window(0, "pending", reason="no audited producer has announced itself"),
        window(1, "incomplete", lost, reason="3 messages are not loaded yet"),
    ]
    answer = Completeness(TOPIC, start, start + timedelta(hours=1), "incomplete", None, windows=windows)
    monkeypatch.setattr(asking, "completeness", lambda *_: answer)
    verdict = asking.auditor_at("http://auditor").judge(TOPIC, HOURS[:1])[HOURS[0]].verdict
    assert verdict.reasons == [
        "3 missing at tier offline: server web-1, service checkout, instance 7, sequences 3-5",
        "3 messages are not loaded yet",
        "no audited producer has announced itself",
    ]
    print_completeness(answer, by_window=False)
    printed = capsys.readouterr().out
    assert all(reason in printed for reason in verdict.reasons)


def test_without_an_auditor_nobody_judges() -> None:
    assert asking.auditor_at("").judge(TOPIC, HOURS)[HOURS[2]].verdict.verdict == "unasked"


def test_an_hour_of_which_no_load_has_rows_may_be_published_as_empty(tmp_path: Path) -> None:
    log = MemoryLog()
    log.append_events(0, [START])
    load_topic(load_run(log, tmp_path), TOPIC)
    (answer,) = answers(tmp_path, publish, TOPIC, "--unasked", "--hour", "2015-05-18T00")
    assert [(change["hour"], change["added"]) for change in answer["changes"]] == [("2015-05-18T00", 0)]


def test_a_run_of_empty_hours_is_one_line_and_is_told_again_beside_a_late_row_of_its_first_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    log.append_events(0, [START, START + 5 * 3_600_000])
    load_topic(load_run(log, tmp_path), TOPIC)
    auditor(
        monkeypatch, tmp_path, "complete", timedelta(), **{f"h{hour:02}": "complete" for hour in range(24)}
    )
    words = [TOPIC, "--auditor", AUDITOR, "--proven", "--run-id", "task-1"]
    done = on(tmp_path, publish, *words)
    assert "2015-05-17T11 to 2015-05-17T14" in done.stdout
    assert "changed 6 hour(s)" in done.stdout
    log.append_events(0, [START + 3_600_000])
    load_topic(load_run(log, tmp_path, "run-2"), TOPIC)
    (again,) = answers(tmp_path, publish, *words)
    assert [(change["hour"][-2:], change["last"][-2:]) for change in again["changes"]] == [
        ("10", ""),
        ("11", "14"),
        ("15", ""),
        ("11", ""),
    ]
    assert again["hours"] == 6
