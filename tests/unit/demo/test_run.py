"""The auditor's answer that the demo takes for the last one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from millrace_audit.answer import Completeness, Verdict
from millrace_demo import run
from tests.unit.demo.test_report import START, WINDOW, answer

SPAN = (START, START + timedelta(hours=1))


@pytest.mark.parametrize(
    ("within_s", "asked", "verdict"), [(60.0, 3, Verdict.COMPLETE), (0.0, 1, Verdict.PENDING)]
)
def test_a_window_that_is_judged_once_more_is_asked_for_again_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, within_s: float, asked: int, verdict: Verdict
) -> None:
    said = [Verdict.PENDING, Verdict.PENDING, Verdict.COMPLETE]
    questions: list[str] = []

    def completeness(auditor: str, topic: str, *_: object) -> Completeness:
        questions.append(topic)
        return answer(topic, replace(WINDOW, verdict=said[len(questions) - 1]))

    monkeypatch.setattr(run, "completeness", completeness)
    (last,) = run.answers_of("http://auditor", ["T"], SPAN, within_s)
    assert (len(questions), last.windows[0].verdict) == (asked, verdict)
