"""A store that comes back from an older copy: the warehouse's folder of a topic, and an agent's spool."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx

from millrace_audit.answer import Verdict
from tests.brokers import free_port
from tests.support import WAIT_S, Process, run_millrace, wait_until
from tests.trials.faultaudit.batches import BATCH, NEEDED, url
from tests.trials.faultaudit.published import PROVEN, mark, publish, publish_proven
from tests.trials.faultaudit.row import HOME, Row
from tests.trials.faultaudit.stage import EVENT, Says, Stage

WAITING = 10
"""Events in an agent's spool while its brokers are away."""
WELL = Says(verdict=Verdict.COMPLETE)
_GONE = Says(beside=Verdict.INCOMPLETE, reason=r"load 2 was counted with \d+ rows and is gone")
_REFUSED = "was counted by the auditor and is gone: .* older copy"


def rows() -> Iterator[Row]:
    yield Row(
        name="warehouse-restored",
        what="a topic's folder in the warehouse comes back from an older copy before its publication",
        plant=_restored_before_publication,
        says=replace(_GONE, sentence="(?s)^no table; .*nothing to change; 0 rows.*waits: .* older copy"),
    )
    yield Row(
        name="warehouse-restored-late",
        what="a topic's folder in the warehouse comes back from an older copy after its publication",
        plant=_restored_after_publication,
        says=replace(_GONE, sentence=f"(?s)^{PROVEN}; .*{_REFUSED}"),
    )
    yield Row(
        name="warehouse-restored-whole",
        what="a topic's folder in the warehouse comes back from its newest copy",
        plant=_restored_whole,
        says=replace(WELL, sentence=f"^{PROVEN}$"),
    )
    yield Row(
        name="spool-copied",
        what="an agent's spool is copied while events wait in it, and two agents go on",
        plant=_spool_copied,
        says=replace(WELL, sentence="older copy: another agent .* has continued with it"),
    )
    yield Row(
        name="spool-moved",
        what="an agent is killed while events wait in its spool, and goes on in another place",
        plant=_spool_moved,
        says=WELL,
    )


# The warehouse


def _loaded_twice(stage: Stage) -> Path:
    """Two loads of the window, and a copy of the folder after the first."""
    stage.begin(batches=2)
    stage.await_tier("offline", 20)
    stage.place.load(stage.topic)
    copy = _copy(stage)
    stage.go_on(2)
    stage.end()
    stage.load()
    stage.await_says(WELL)
    return copy


def _copy(stage: Stage) -> Path:
    return Path(
        shutil.copytree(stage.place.warehouse / stage.topic, stage.place.folder / f"{stage.topic}-copy")
    )


def _put_back(stage: Stage, copy: Path) -> None:
    shutil.rmtree(stage.place.warehouse / stage.topic)
    shutil.copytree(copy, stage.place.warehouse / stage.topic)


def _verify(stage: Stage) -> str:
    asked = (stage.topic, "--auditor", stage.place.auditor_url)
    done = run_millrace("verify", "--warehouse", str(stage.place.warehouse), *asked)
    return done.stdout + done.stderr


def _restored_before_publication(stage: Stage) -> None:
    copy = _loaded_twice(stage)
    _put_back(stage, copy)
    said = publish(stage, "--proven")
    stage.sentence = f"{mark(stage)}; {said}{_verify(stage)}"


def _restored_after_publication(stage: Stage) -> None:
    copy = _loaded_twice(stage)
    before = publish_proven(stage)
    _put_back(stage, copy)
    stage.sentence = f"{before}; {publish(stage, '--proven')}{_verify(stage)}"


def _restored_whole(stage: Stage) -> None:
    _loaded_twice(stage)
    shutil.rmtree(stage.place.folder / f"{stage.topic}-copy")
    _put_back(stage, _copy(stage))
    stage.sentence = publish_proven(stage)


# An agent's spool


def _spool_copied(stage: Stage) -> None:
    agent = _Agent(stage, stage.place.folder / f"{stage.topic}-spool")
    agent.take_while_brokers_are_away(stage, lambda: agent.process.stop())
    copy = Path(shutil.copytree(agent.spool, stage.place.folder / f"{stage.topic}-spool-copy"))
    first = _Agent(stage, agent.spool)
    first.await_sent()
    second = _Agent(stage, copy)
    assert second.process.wait(timeout_s=WAIT_S) == 1, f"it goes on:\n{second.process.output}"
    stage.sentence = second.process.output
    _end_with(stage, first)


def _spool_moved(stage: Stage) -> None:
    agent = _Agent(stage, stage.place.folder / f"{stage.topic}-here")
    agent.take_while_brokers_are_away(stage, agent.process.kill)
    moved = agent.spool.rename(stage.place.folder / f"{stage.topic}-there")
    next_one = _Agent(stage, moved, server="elsewhere")
    next_one.await_sent()
    _end_with(stage, next_one)


def _end_with(stage: Stage, agent: _Agent) -> None:
    assert agent.process.stop() == 0, agent.process.output
    stage.traffic()
    stage.load()
    acknowledged = stage.ask()[0].acknowledged
    assert acknowledged == (NEEDED + 1) * BATCH + 1 + WAITING, f"{acknowledged} events are acknowledged"


class _Agent:
    """An agent of dc1."""

    def __init__(self, stage: Stage, spool: Path, server: str = "here") -> None:
        place, port = stage.place, free_port()
        self.spool, self._url, self._topic = spool, f"http://127.0.0.1:{port}", stage.topic
        self.process = Process(
            [
                *("agent", "--cluster", HOME, "--bootstrap", place.clusters[HOME].bootstrap),
                *("--registry", place.registry, "--service", "shop", "--server", server),
                *("--spool", str(spool), "--listen", f"127.0.0.1:{port}"),
            ]
        )
        self.process.ready()

    def take_while_brokers_are_away(self, stage: Stage, end: Callable[[], object]) -> None:
        """One event is sent, others wait when the agent ends."""
        self._post(stage, 1)
        self.await_sent()
        with stage.without(f"{HOME}-1"):
            self._post(stage, WAITING)
            end()

    def await_sent(self) -> None:
        def is_sent() -> bool:
            return "millrace_agent_spool_events 0.0" in httpx.get(f"{self._url}/metrics").text

        wait_until("all is sent", is_sent)

    def _post(self, stage: Stage, count: int) -> None:
        events = [{"time": stage.start + n, "event": {**EVENT, "url": url(n)}} for n in range(count)]
        httpx.post(f"{self._url}/v1/topics/{self._topic}/events", json=events).raise_for_status()
