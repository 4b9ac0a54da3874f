"""Cases of an agent's spool: events that it holds are sent twice by nobody, or the hour is not complete."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE
from tests.brokers import read_partition
from tests.integration.test_agent import Agent, body, event
from tests.support import Process, wait_until
from tests.trials.faultaudit.row import HOME
from tests.trials.faultrestore.scene import TOPIC, Copy, Scene, Wrong

_EVENTS = 20
SETTLED_S = 10.0
"""A verdict that is still open after so long stays open."""


def a_spool_put_back_at_rest_is_refused_or_its_hour_is_not_complete(scene: Scene) -> None:
    agent, copy = _copy_with_unsent_events(scene)
    agent.run()
    agent.await_sent()
    assert agent.process is not None
    agent.process.stop()
    copy.put_back()
    _send_all_or_be_refused(agent)
    _check_no_event_is_there_twice_in_a_complete_hour(scene)


def a_spool_put_back_at_once_is_refused_or_its_hour_is_not_complete(scene: Scene) -> None:
    agent, copy = _copy_with_unsent_events(scene)
    agent.run()
    agent.await_sent()
    assert agent.process is not None
    agent.process.kill()
    copy.put_back()
    _send_all_or_be_refused(agent)
    _check_no_event_is_there_twice_in_a_complete_hour(scene)


def a_spools_copy_beside_it_is_refused_or_its_hour_is_not_complete(scene: Scene) -> None:
    agent, copy = _copy_with_unsent_events(scene)
    second = _agent(scene, copy.content)
    agent.run()
    agent.await_sent()
    copy.count()
    _send_all_or_be_refused(second)
    assert agent.process is not None
    agent.process.stop()
    _check_no_event_is_there_twice_in_a_complete_hour(scene)


def _agent(scene: Scene, spool: Path) -> Agent:
    place = scene.place
    return Agent(
        lambda *words, **_: Process(words),
        [
            *("--cluster", HOME, "--bootstrap", place.clusters[HOME].bootstrap, "--registry", place.registry),
            *("--service", "shop", "--server", "web-1", "--lateness-ms", "0", "--spool", str(spool)),
        ],
    )


def _copy_with_unsent_events(scene: Scene) -> tuple[Agent, Copy]:
    """A killed agent, and its spool with events that no broker has."""
    place, spool = scene.place, scene.place.folder / "spool"
    agent = _agent(scene, spool)
    process = agent.run()
    assert agent.post(TOPIC, event("/first")).status_code == 200
    agent.await_sent()
    place.kill(*place.brokers_of(HOME))
    events = [event(f"/{number}") for number in range(_EVENTS)]
    assert agent.post(TOPIC, events).status_code == 200
    process.kill()
    copy = scene.copy(spool)
    place.restart(*place.brokers_of(HOME))
    return agent, copy


def _send_all_or_be_refused(agent: Agent) -> None:
    """Start an agent that must refuse with one sentence; one that does not sends what its spool holds."""
    process = agent.start("agent", *agent.options, "--listen", f"127.0.0.1:{agent.port}")
    wait_until("it is refused or ready", lambda: not process.running or "ready: " in process.output)
    if process.running:
        wait_until("it is refused or all is sent", lambda: not process.running or _is_sent(agent))
    process.stop()
    assert "Traceback" not in process.output, process.output


def _is_sent(agent: Agent) -> bool:
    with suppress(httpx.TransportError):  # it has ended
        return agent.metric("spool_events") == 0
    return False


def _check_no_event_is_there_twice_in_a_complete_hour(scene: Scene) -> None:
    place = scene.place
    with place.clusters[HOME].client() as client:
        values = [value or b"" for value in read_partition(client, TOPIC, 0).values]
    urls = Counter(str(body(value)["url"]) for value in values)
    assert len(urls) == _EVENTS + 1, f"not every event that was accepted is there: {urls}"
    scene.stage.await_tier(OFFLINE, urls.total())
    place.load(TOPIC)
    deadline = time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        verdict = scene.stage.ask()[0].verdict
        if urls.total() > len(urls) and verdict in (Verdict.COMPLETE, Verdict.CARRIED):
            raise Wrong(f"{verdict}, and {urls.total() - len(urls)} events are there twice")
        time.sleep(0.2)
