"""One row's stage: its topic in a place, the traffic on it, and what the auditor is asked and must say.

A stage's window is ten minutes that hold four batches of ten messages of dc1 and ten messages of dc2; the
window behind it holds ten more of dc1's instance, which nothing may be said against. Knows no fault.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
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
from tests.brokers import read_partition
from tests.support import WAIT_S, wait_until
from tests.trials.faultaudit import logs
from tests.trials.faultaudit.batches import BATCH, NEEDED, url
from tests.trials.faultaudit.place import Place

START = 1_431_856_800_000
"""2015-05-17T10:00Z."""
EVENT: dict[str, Any] = {"clientAddress": "10.0.0.1", "method": "GET", "protocol": "HTTP/1.1", "status": 200}
_ON_ITS_WAY = re.compile(
    "on its way|holds nothing|no heartbeat|goes on|still read|being judged|not counted yet"
)
_STRANGER = ("place", "kind", "cause", "who")
HOLDS_S = 1.0
"""A verdict is one that still holds so much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """Report that the auditor must make."""

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
    """The auditor's actual report, compared with the required one."""

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


def send(producer: AuditedProducer, topic: str, first: int, start: int = START) -> None:
    """Ten messages, of which the first has the number `first` in the window from `start`.

    The schema of the topic decides where their audit headers are.
    """
    for number in range(first, first + BATCH):
        event = {**EVENT, "url": url(number)}
        producer.send(topic, None, event, time_ms=start + number, partition=0)


@dataclass(slots=True)
class Stage:
    """One row's."""

    place: Place
    topic: str
    start: int = START
    """Start of the stage's window."""
    sentence: str = ""
    """Message of a program that refused the fault."""
    instances: dict[str, int] = field(default_factory=dict)
    """Cluster -> the instance that sent there."""
    _sending: AuditedProducer | None = None
    _before: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._before = self._strangers()

    # Traffic

    def traffic(self) -> None:
        """All messages of both windows, acknowledged and reported, every instance ended."""
        self.begin()
        self.end()

    def begin(self, batches: int = NEEDED) -> None:
        """The first messages of the window; their producer goes on."""
        self._sending = self.place.producer("dc1")
        self.instances["dc1"] = self._sending.instance
        self.go_on(0, batches)

    def go_on(self, batch: int, end: int = NEEDED) -> None:
        """The batches of the window from that one on."""
        for first in range(batch * BATCH, end * BATCH, BATCH):
            self.send(self.producer, first)

    @property
    def producer(self) -> AuditedProducer:
        """Producer of dc1, between `begin` and `end`."""
        assert self._sending is not None
        return self._sending

    def end(self) -> None:
        """Those of the window behind it, and of dc2."""
        self.send(self.producer, NEEDED * BATCH, self.start + WINDOW_MS)
        self.producer.close()
        self.elsewhere()

    def send(self, producer: AuditedProducer, first: int, start: int | None = None) -> None:
        """A batch of ten messages, acknowledged and reported; see `send`."""
        send(producer, self.topic, first, self.start if start is None else start)
        producer.flush()

    def before(self) -> None:
        """Ten messages of another instance of dc1, in the window before."""
        with self.place.producer("dc1") as producer:
            self.send(producer, 0, self.start - WINDOW_MS)

    def await_before(self) -> None:
        """Until the report of those is applied."""
        start, end = utc(self.start - WINDOW_MS), utc(self.start)

        def reported() -> bool:
            asked = completeness(self.place.auditor_url, self.topic, start, end)
            return asked.windows[0].acknowledged == BATCH

        wait_until(f"{self.topic} is reported before", reported)

    def elsewhere(self) -> None:
        """The messages of dc2."""
        with self.place.producer("dc2") as producer:
            self.send(producer, 0)
        self.instances["dc2"] = producer.instance

    def load(self, fault: str = "", *options: str) -> None:
        """Wait until the aggregate cluster is counted, and load."""
        self.await_counted()
        self.place.load(self.topic, fault, *options)

    def await_copied(self) -> None:
        """Until some of the window is counted in the aggregate cluster."""
        wait_until(f"{self.topic} is copied", lambda: self.ask()[0].tiers.get(OFFLINE))

    def await_tier(self, tier: str, messages: int) -> None:
        """Until so many messages of both windows are counted there."""
        counted = lambda: sum(window.tiers.get(tier, 0) for window in self.ask()) >= messages  # noqa: E731
        wait_until(f"{self.topic} is counted at {tier}", counted)

    def await_in_copy(self, batches: int) -> None:
        """Until the aggregate cluster's copy of dc1's partition has so many data batches, by its log."""

        def copied() -> bool:
            with self.place.clusters[OFFLINE].client() as client:
                partition = self.place.target_of("dc1", self.topic)
                return len(read_partition(client, self.topic, partition).batches) >= batches

        wait_until(f"{self.topic} is copied", copied)

    def await_counted(self) -> None:
        """Until nothing of the topic waits in the aggregate cluster or before it."""

        def counted() -> bool:
            windows = self.ask()
            reasons = [reason for window in windows for reason in window.reasons]
            return not any(map(_ON_ITS_WAY.search, reasons)) and OFFLINE in windows[0].tiers

        try:
            wait_until(f"{self.topic} is counted", counted)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.hears(Says())}") from None

    # Who stands still meanwhile

    def held(self) -> AbstractContextManager[None]:
        """The mirror copies nothing of the topic."""
        return self.place.holding(self.topic)

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """These processes are away."""
        self.place.stop(*reversed(names))
        try:
            yield
        finally:
            self.place.restart(*names)

    def damage(self, cluster: str, damage: Callable[[Any], None]) -> None:
        """Do that to the files of the topic's partition there while its broker is stopped."""
        partition = self.place.target_of("dc1", self.topic) if cluster == OFFLINE else 0
        with self.without(f"{cluster}-1"):
            damage(self.place.log_folder(cluster, self.topic, partition))

    def edit_log(self, cluster: str, change: Callable[[Sequence[bytes]], list[bytes]]) -> None:
        self.damage(cluster, lambda folder: logs.edit(folder, change))

    # What is said

    def ask(self) -> Sequence[Window]:
        """Both windows."""
        start, end = utc(self.start), utc(self.start + 2 * WINDOW_MS)
        return completeness(self.place.auditor_url, self.topic, start, end).windows

    def hears(self, says: Says) -> Heard:
        window, beside = self.ask()
        findings = frozenset((f.kind, f.tier, in_words(f.sequences)) for f in window.findings)
        strangers = [*(self._strangers() - self._before)]
        return Heard(says, window.verdict, beside.verdict, findings, window.reasons, strangers, self.sentence)

    def await_says(self, says: Says, timeout_s: float = WAIT_S) -> Heard:
        """Wait until the report is as required and holds; raise Missed if it never is."""
        deadline = time.monotonic() + timeout_s
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
        found = httpx.get(f"{self.place.auditor_url}/v1/rejected-records").json()
        return Counter({" ".join(each[key] for key in _STRANGER): each["count"] for each in found})
