"""The auditor's answer: its JSON, which sensors and scripts read, and windows put together."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace_audit.answer import (
    Changes,
    Completeness,
    Finding,
    Instance,
    JudgedHour,
    LoadHour,
    NewestLoad,
    Topic,
    Verdict,
    Window,
    by_hour,
    tiers_of,
    to_json,
)
from millrace_audit.reports.messages import FOR_EVER
from millrace_audit.show import print_completeness

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
LOST = Finding(
    "missing", "offline", "web-1", "shop", 11, [[3, 3], [7, 9]], 4, "millrace mirror status CONFIG"
)
WINDOW = Window(
    start=START,
    end=START + timedelta(minutes=10),
    verdict=Verdict.INCOMPLETE,
    revision=2,
    acknowledged=10,
    failed=1,
    tiers={"dc1": 10, "offline": 6, "warehouse": 0},
    findings=[LOST],
    reasons=["instance 7 is silent"],
    carried=4,
    foreign={"dc1": 3},
    rejected=1,
    incidents=["missing-at-offline:dc1"],
)
ANSWER = Completeness(
    topic="PageView",
    start=START,
    end=START + timedelta(minutes=5, milliseconds=7),
    verdict=Verdict.INCOMPLETE,
    watermark=None,
    held_by="dc1 stands",
    foreign={"dc1": 3},
    applied_at=START,
    newest_load=NewestLoad(2, "ab"),
    owner="team-web",
    hours=[JudgedHour(START, [LoadHour(1, 2, "cd", 9, 1)])],
    live_through=START + timedelta(hours=3),
    windows=[WINDOW],
)


def test_the_json_of_an_answer_is_what_its_readers_know() -> None:
    text = json.dumps(to_json(ANSWER))
    assert text == (
        '{"topic": "PageView", "from": "2015-05-17T10:00:00Z", "to": "2015-05-17T10:05:00.007Z",'
        ' "verdict": "incomplete", "watermark": null, "held_by": "dc1 stands",'
        ' "foreign": {"dc1": 3}, "enough": "complete", "owner": "team-web",'
        ' "applied_at": "2015-05-17T10:00:00Z", "newest_load": {"load": 2, "sha256": "ab"},'
        ' "hours": [{"hour": "2015-05-17T10:00:00Z",'
        ' "loads": [{"load": 1, "edition": 2, "sha256": "cd", "rows": 9, "rejected": 1}]}],'
        ' "live_through": "2015-05-17T13:00:00Z",'
        ' "windows": [{"start": "2015-05-17T10:00:00Z", "end": "2015-05-17T10:10:00Z",'
        ' "verdict": "incomplete", "revision": 2, "acknowledged": 10, "failed": 1,'
        ' "tiers": {"dc1": 10, "offline": 6, "warehouse": 0},'
        ' "findings": [{"kind": "missing", "tier": "offline", "server": "web-1", "service": "shop",'
        ' "instance": 11, "sequences": [[3, 3], [7, 9]], "count": 4,'
        ' "command": "millrace mirror status CONFIG"}],'
        ' "reasons": ["instance 7 is silent"], "carried": 4, "foreign": {"dc1": 3}, "rejected": 1,'
        ' "incidents": ["missing-at-offline:dc1"]}]}'
    )
    assert Completeness.from_json(json.loads(text)) == ANSWER
    proved = replace(ANSWER, watermark=START)
    assert Completeness.from_json(json.loads(json.dumps(to_json(proved)))) == proved


def test_an_auditor_of_the_version_before_names_no_hours() -> None:
    answer = to_json(ANSWER)
    for name in ("hours", "newest_load", "applied_at", "owner"):
        del answer[name]
    read = Completeness.from_json(answer)
    assert (read.hours, read.newest_load, read.applied_at, read.owner) == (None, None, None, "")


def test_changed_hours_are_read_back() -> None:
    changes = Changes("ab.7", [START], more=True)
    assert Changes.from_json(json.loads(json.dumps(to_json(changes)))) == changes


def test_an_answer_in_words_tells_of_branch_live_only_if_it_was_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_completeness(ANSWER, by_window=False)
    line = "branch live has every row that reached the warehouse before 2015-05-17T13:00, proven or not"
    assert line in capsys.readouterr().out.splitlines()
    print_completeness(replace(ANSWER, live_through=None), by_window=False)
    assert "branch live" not in capsys.readouterr().out


def test_the_json_of_a_topic_names_its_instances_and_the_ends_of_time() -> None:
    open_still = Instance(instance=1, server="web-1", service="shop", cluster="dc1")
    ended = replace(
        open_still,
        heard_at=1_431_856_800_000,
        closed_through=FOR_EVER,
        missing_reports=[[2, 3]],
        accepted="its host is gone",
    )
    assert json.dumps(to_json(Topic("PageView", START, None, [open_still, ended], "team-web", START))) == (
        '{"topic": "PageView", "watermark": "2015-05-17T10:00:00Z", "held_by": null, "instances": ['
        '{"instance": 1, "server": "web-1", "service": "shop", "cluster": "dc1", "announced": true,'
        ' "heard_at": "nothing", "closed_through": "nothing", "missing_reports": [],'
        ' "first_report": 0, "idle": false, "accepted": null},'
        ' {"instance": 1, "server": "web-1", "service": "shop", "cluster": "dc1", "announced": true,'
        ' "heard_at": "2015-05-17T10:00:00Z", "closed_through": "for ever", "missing_reports": [[2, 3]],'
        ' "first_report": 0, "idle": false, "accepted": "its host is gone"}], "owner": "team-web",'
        ' "live_through": "2015-05-17T10:00:00Z"}'
    )


def test_an_hour_adds_its_windows_up_and_is_as_bad_as_the_worst() -> None:
    next_window = replace(
        WINDOW,
        start=WINDOW.end,
        end=WINDOW.end + timedelta(minutes=10),
        verdict=Verdict.UNKNOWN,
        revision=0,
        tiers={"dc2": 1, "offline": 1},
        findings=[],
    )
    later = replace(WINDOW, start=START + timedelta(hours=1), verdict=Verdict.COMPLETE)
    hour, next_hour = by_hour([WINDOW, next_window, later])
    assert (hour.start, hour.end) == (START, next_window.end)
    assert (hour.verdict, hour.revision, hour.acknowledged, hour.failed) == ("incomplete", 2, 20, 2)
    assert hour.tiers == {"dc1": 10, "dc2": 1, "offline": 7, "warehouse": 0}
    assert hour.rejected == 2
    assert (hour.findings, hour.reasons) == ([LOST], ["instance 7 is silent"] * 2)
    assert (next_hour.start, next_hour.verdict) == (later.start, "complete")
    assert tiers_of([hour]) == ["dc1", "dc2", "offline", "warehouse"]


def test_an_hour_names_the_findings_of_its_worst_window_first() -> None:
    early = replace(WINDOW, verdict=Verdict.CARRIED, findings=[replace(LOST, tier="table")])
    worst = replace(WINDOW, start=WINDOW.end, end=WINDOW.end + timedelta(minutes=10))
    (hour,) = by_hour([early, worst])
    assert hour.findings == [*worst.findings, *early.findings]
