"""Cases of a whole datacenter whose logs are put back, and of the aggregate cluster's audit topics.

The logs of all three replicas are put back together, so that nothing but other clusters knows more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from millrace.client.cluster_client import LATEST
from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, OFFLINE
from tests.brokers import read_partition
from tests.support import wait_until
from tests.trials.faultaudit.batches import BATCH, url
from tests.trials.faultaudit.row import HOME
from tests.trials.faultrestore.scene import EVENTS, TOPIC, Copy, Scene, Wrong

_AUDITED = (TOPIC, AUDIT_TOPIC, COUNTS_TOPIC)
_STOPPED = "was cut back|has lost what it showed before"
"""Sentences of a stopped mirror: the origin has grown past its old end again, or not yet."""


def an_origin_put_back_at_rest_while_its_mirror_stood_stops_the_mirror(scene: Scene) -> None:
    """The log has grown past its old end when the mirror reads on: then only the epoch shows the cut."""
    place, stage = scene.place, scene.stage
    copies = _copy_behind_the_first_batch(scene, HOME)
    stage.go_on(1, 2)
    stage.await_in_copy(2)
    with stage.held():
        place.stop(*place.brokers_of(HOME))
        _put_back(copies)
        _serve_again(scene, HOME)
        ends = _ends(scene, HOME)
        _send_anew(scene)
    _check_stopped_and_go_on(scene, ends, _STOPPED)


def an_origin_put_back_at_once_stops_the_mirror_that_is_connected(scene: Scene) -> None:
    place, stage = scene.place, scene.stage
    copies = _copy_behind_the_first_batch(scene, HOME)
    stage.go_on(1, 2)
    stage.await_in_copy(2)
    place.kill(*place.brokers_of(HOME))
    _put_back(copies)
    _serve_again(scene, HOME)
    ends = _ends(scene, HOME)
    _send_anew(scene)
    _check_stopped_and_go_on(scene, ends, _STOPPED)


def an_aggregate_put_back_at_rest_makes_hours_unknown_and_calls_no_message_missing(scene: Scene) -> None:
    _put_the_aggregate_back(scene, scene.place.stop)


def an_aggregate_put_back_at_once_makes_hours_unknown_and_calls_no_message_missing(scene: Scene) -> None:
    _put_the_aggregate_back(scene, scene.place.kill)


def _put_the_aggregate_back(scene: Scene, end: Callable[..., None]) -> None:
    place, stage = scene.place, scene.stage
    copies = _copy_behind_the_first_batch(scene, OFFLINE)
    stage.go_on(1)
    stage.await_tier(OFFLINE, 4 * BATCH)
    with scene.watched() as watch:
        end(*place.brokers_of(OFFLINE))
        _put_back(copies)
        _serve_again(scene, OFFLINE)
        stage.end()
        _await_values(scene, EVENTS)
        place.load(TOPIC)
        decided = {Verdict.UNKNOWN, Verdict.COMPLETE}
        wait_until("both windows are judged", lambda: {w.verdict for w in stage.ask()} <= decided)
    watch.check_no_alarm()


def _copy_behind_the_first_batch(scene: Scene, cluster: str) -> Sequence[Copy]:
    """The directories of all brokers at one moment, while nobody writes to them."""
    place, stage = scene.place, scene.stage
    stage.begin(batches=1)
    stage.await_tier(OFFLINE, BATCH)
    place.stop(*place.brokers_of(cluster))
    copies = [scene.copy(place.clusters[cluster].directory(number)) for number in (1, 2, 3)]
    place.restart(*place.brokers_of(cluster))
    return copies


def _put_back(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.put_back()


def _serve_again(scene: Scene, cluster: str) -> None:
    """Start the brokers; where partitions wait for an operator, say that the copies may serve."""
    place = scene.place
    place.restart(*place.brokers_of(cluster))
    newest = 3  # the broker that stopped last when the copies were made
    if not place.elect_restored(cluster, newest):
        raise Wrong(f"{cluster} serves logs that lack acknowledged messages, and no operator said so")


def _ends(scene: Scene, cluster: str) -> dict[str, int]:
    with scene.place.clusters[cluster].client() as client:
        return {topic: client.list_offsets(topic, LATEST)[0] for topic in _AUDITED}


def _send_anew(scene: Scene) -> None:
    """Sixty messages of another instance: more than what the copies lack."""
    with scene.place.producer(HOME) as producer:
        for first in range(100, 160, BATCH):
            scene.stage.send(producer, first)
    scene.stage.elsewhere()


def _check_stopped_and_go_on(scene: Scene, ends: dict[str, int], why: str) -> None:
    """The mirror names each log that was cut back, and goes on once an operator says where."""
    place = scene.place
    stopped = wait_until(f"the mirror of {TOPIC} has stopped", lambda: _stopped(scene, TOPIC))
    assert all(re.search(why, row["detail"]) for row in stopped), stopped
    if any(value.find(url(100).encode()) >= 0 for value in _copied(scene)):
        raise Wrong("the mirror went on over offsets that the origin has used again")
    config = str(place.clusters[OFFLINE].brokers[1].config)
    for topic, end in ends.items():
        if _stopped(scene, topic):
            reset = ("mirror", "reset", config, "--origin", HOME, "--topic", topic)
            place.millrace(*reset, "--partition", "0", "--at", str(end), "--yes")
    _await_values(scene, 2 * BATCH + 60 + BATCH)


def _stopped(scene: Scene, topic: str) -> list[dict[str, Any]]:
    """Rows of the mirror's status of a topic of the datacenter, where it has stopped."""
    config = str(scene.place.clusters[OFFLINE].brokers[1].config)
    rows = json.loads(scene.place.millrace("mirror", "status", config, "--json"))
    return [
        row
        for row in rows
        if (row["topic"], row["state"], row["origin"]["cluster"]) == (topic, "stopped", HOME)
    ]


def _copied(scene: Scene) -> list[bytes]:
    """The topic's values in the aggregate cluster."""
    with scene.place.clusters[OFFLINE].client() as client:
        numbers = client.topic(TOPIC).partitions
        return [value or b"" for n in numbers for value in read_partition(client, TOPIC, n).values]


def _await_values(scene: Scene, count: int) -> None:
    """Until the aggregate cluster has so many of the topic's messages, each once."""
    wait_until(f"{count} messages of {TOPIC} are copied", lambda: len(_copied(scene)) >= count)
    values = _copied(scene)
    if len(values) != len(set(values)) or len(values) != count:
        raise Wrong(f"{len(values)} messages are copied, {len(set(values))} different ones, of {count}")
