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
