# ruff: noqa
from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace as N
from uuid import UUID

import pytest

from millrace_audit.auditor import answers, ledger
from millrace_audit.auditor.ledger import Heard
from millrace_audit.auditor.store import AuditStore, Row
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import *
from millrace_audit.reports.messages import Origin
from millrace_audit.reports.ranges import SequenceRanges
from tests.unit.audit.story import COUNTED, NOW, OWN, RULES, SAID, STEP, TOPIC, Story, W, found, key_of
from tests.unit.audit.test_hostile import evil, quick, story


def test_26_many_windows(quick: Story) -> None:
    for n in (5000, 10000):
        store = AuditStore("sqlite://")
        s = Story(store)
        evil(
            s,
            [
                ReportedWindow(TOPIC, W - i * WINDOW_MS, SequenceRanges([(0, 0)]), SequenceRanges())
                for i in range(n)
            ],
            closed=NOTHING,
        )
        s.beats()
        began = time.perf_counter()
        s.apply()
        one = time.perf_counter() - began
        began = time.perf_counter()
        s.settle()
        print(n, "windows: apply", one, "each settle after", time.perf_counter() - began)
        store.close()


def test_27_one_report_of_many_ranges_makes_every_other_slow(quick: Story) -> None:
    evil(
        quick,
        [
            ReportedWindow(
                TOPIC, W, SequenceRanges([(2 * i, 2 * i) for i in range(300_000)]), SequenceRanges()
            )
        ],
        closed=NOTHING,
    )
    quick.hello()
    quick.beats()
    quick.apply()
    for n in range(2):
        quick.report(n, (n, n), closed=W)
        began = time.perf_counter()
        quick.apply()
        print("one small report:", time.perf_counter() - began)
