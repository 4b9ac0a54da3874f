"""One row's stage: its topic in a place, the traffic on it, and what the auditor is asked and must say.

A stage's window is ten minutes that hold four batches of ten messages of dc1 and ten messages of dc2; the
window behind it holds ten more of dc1's instance, which nothing may be said against. Knows no fault.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from millrace.errors import MillraceError
from millrace_audit.answer import Verdict, Window, utc
from millrace_audit.client import completeness
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import OFFLINE
from millrace_audit.reports.ranges import in_words
from tests.faultaudit import logs
from tests.faultaudit.batches import BATCH, NEEDED, url
from tests.faultaudit.place import PAGE_VIEW, Place
from tests.support import WAIT_S, wait_until

START = 1_431_856_800_000
"""2015-05-17T10:00Z."""
EVENT: dict[str, Any] = {"clientAddress": "10.0.0.1", "method": "GET", "protocol": "HTTP/1.1", "status": 200}
_STRANGER = ("place", "kind", "cause", "who")
HOLDS_S = 1.0
"""A verdict is one that still holds so much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """What the auditor must say."""

    verdict: str = Verdict.INCOMPLETE
    findings: Sequence[tuple[str, str, str]] = ()
    """Kind, tier and sequences (`10-19, 30`) of everything that is wrong in the stage's window."""
    reason: str = ""
    """A pattern that a reason of the window fits."""
    beside: str = Verdict.COMPLETE
    """The verdict on the window behind it."""
    stranger: str = ""
    """A pattern that a stranger fits that was not there before the fault: `place kind cause who`."""
    sentence: str = ""
    """A pattern of what the program says that refuses the fault itself."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the auditor did say, held against what it must."""

    says: Says
    verdict: str
    beside: str
    findings: frozenset[tuple[str, str, str]]
    reasons: Sequence[str]
    strangers: Sequence[str]
    sentence: str

    @property
    def found(self) -> bool:
        """It says that something is there, be it the wrong thing."""
        if self.says.sentence:
            return bool(self.sentence)
        if self.says.stranger:
            return bool(self.strangers)
        return self.verdict not in (Verdict.COMPLETE, Verdict.CARRIED) or self.says.verdict == self.verdict

    @property
    def attributed(self) -> bool:
        """At the right hop, as the right kind, and nothing said of what is beside it."""
        places = {found[:2] for found in self.says.findings} == {found[:2] for found in self.findings}
        verdicts = (self.verdict, self.beside) == (self.says.verdict, self.says.beside)
        return self.found and places and verdicts

    @property
    def named(self) -> bool:
        """With its very sequences, offsets, names."""
        return (
            self.attributed
            and self.findings == frozenset(self.says.findings)
            and _fits(self.says.reason, self.reasons)
            and _fits(self.says.stranger, self.strangers)
            and _fits(self.says.sentence, [self.sentence])
        )

    def __str__(self) -> str:
        said = [f"{self.verdict}, beside it {self.beside}"]
        said += [f"{kind} at {tier}: {sequences}" for kind, tier, sequences in sorted(self.findings)]
        said += [*self.reasons, *(f"stranger: {each}" for each in self.strangers)]
        return "; ".join([*said, *([f"said: {self.sentence}"] if self.sentence else [])])


def _fits(pattern: str, texts: Sequence[str]) -> bool:
    return not pattern or any(re.search(pattern, text) for text in texts)


class Missed(Exception):
    """The auditor does not say what it must; `heard` is what it says."""

    def __init__(self, heard: Heard) -> None:
        super().__init__(f"expected {heard.says}, heard: {heard}")
        self.heard = heard


@dataclass(slots=True)
class Stage:
    """One row's."""

    place: Place
    topic: str
    sentence: str = ""
    """What a program said that refused the fault."""
    instances: dict[str, int] = field(default_factory=dict)
    """Cluster -> the instance that sent there."""
    _producer: AuditedProducer | None = None
    _before: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._before = self._strangers()

    # Traffic

    def traffic(self) -> None:
        """All messages of both windows, acknowledged and reported, every instance ended."""
        self.begin()
        self.end()

    def begin(self) -> None:
        """The messages of the window; their producer goes on."""
        self._producer = self.place.producer("dc1")
        self.instances["dc1"] = self._producer.instance
        for first in range(0, NEEDED * BATCH, BATCH):
            self.send(self._producer, first)

    def end(self) -> None:
        """Those of the window behind it, and of dc2."""
        assert self._producer is not None
        self.send(self._producer, NEEDED * BATCH, START + WINDOW_MS)
        self._producer.close()
        self.elsewhere()

    def elsewhere(self) -> None:
        """The messages of dc2."""
        with self.place.producer("dc2") as producer:
            self.send(producer, 0)
        self.instances["dc2"] = producer.instance

    def send(self, producer: AuditedProducer, first: int, start: int = START, count: int = BATCH) -> None:
        """One batch, whose first message has the number `first` in the window from `start`."""
        for number in range(first, first + count):
            event = {**EVENT, "url": url(number)}
            producer.send(self.topic, PAGE_VIEW, event, time_ms=start + number, partition=0)
        producer.flush()

    def load(self, fault: str = "", *options: str) -> None:
        """Wait until the aggregate cluster is counted, and load."""
        self.await_counted()
        self.place.load(self.topic, fault, *options)

    def await_copied(self) -> None:
        """Until some of the window is counted in the aggregate cluster."""
        wait_until(f"{self.topic} is copied", lambda: self.ask()[0].tiers.get(OFFLINE))

    def await_counted(self) -> None:
        """Until nothing of the topic waits in the aggregate cluster or before it."""

        def counted() -> bool:
            windows = self.ask()
            reasons = [reason for window in windows for reason in window.reasons]
            on_its_way = re.compile("on its way|goes on|is still read|being judged|not counted yet")
            return not any(map(on_its_way.search, reasons)) and OFFLINE in windows[0].tiers

        try:
            wait_until(f"{self.topic} is counted", counted)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.hears(Says())}") from None

    # Who stands still meanwhile

    @contextmanager
    def held(self) -> Iterator[None]:
        """The mirror copies nothing of the topic."""
        file = self.place.held / self.topic
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """These processes are away."""
        self.place.stop(*reversed(names))
        yield
        self.place.restart(*names)

    def damage(self, cluster: str, damage: Callable[[Any], None]) -> None:
        """Do that to the files of the topic's partition there while its broker is stopped."""
        with self.without(f"{cluster}-1"):
            damage(self.place.log_folder(cluster, self.topic))

    def edit_log(self, cluster: str, change: Callable[[Sequence[bytes]], list[bytes]]) -> None:
        self.damage(cluster, lambda folder: logs.edit(folder, change))

    # What is said

    def ask(self) -> Sequence[Window]:
        """Both windows."""
        start, end = utc(START), utc(START + 2 * WINDOW_MS)
        return completeness(self.place.auditor_url, self.topic, start, end).windows

    def hears(self, says: Says) -> Heard:
        window, beside = self.ask()
        findings = frozenset((f.kind, f.tier, in_words(f.sequences)) for f in window.findings)
        strangers = [*(self._strangers() - self._before)]
        return Heard(says, window.verdict, beside.verdict, findings, window.reasons, strangers, self.sentence)

    def await_says(self, says: Says) -> Heard:
        """What is heard once it is what must be said, and holds; Missed when that never comes."""
        deadline = time.monotonic() + WAIT_S
        while True:
            with suppress(MillraceError):  # it is on its way back
                heard = self.hears(says)
                if heard.named:
                    time.sleep(HOLDS_S)
                    if (heard := self.hears(says)).named:
                        return heard
                if time.monotonic() > deadline:
                    raise Missed(heard)
            assert time.monotonic() < deadline + WAIT_S, f"no auditor answers at {self.place.auditor_url}"
            time.sleep(0.1)

    def _strangers(self) -> Counter[str]:
        found = httpx.get(f"{self.place.auditor_url}/v1/strangers").json()
        return Counter({" ".join(each[key] for key in _STRANGER): each["count"] for each in found})
