"""Cases of the registry's database: an id that messages carry never stands for another schema."""

from __future__ import annotations

from typing import Any

from millrace.errors import MillraceError
from millrace_audit.reports.messages import OFFLINE
from millrace_registry.client import SchemaRegistryClient
from tests.trials.faultaudit.batches import BATCH
from tests.trials.faultaudit.place import PAGE_VIEW
from tests.trials.faultaudit.row import HOME
from tests.trials.faultaudit.stage import EVENT
from tests.trials.faultrestore.scene import TOPIC, Scene, Wrong


def a_registry_put_back_at_rest_hands_out_no_id_that_messages_carry(scene: Scene) -> None:
    copy = scene.copy(scene.place.folder / "registry.db")
    used = _send_with_a_new_schema(scene)
    scene.place.stop("registry")
    copy.put_back()
    scene.place.restart("registry")
    _check_no_id_is_used_again(scene, used)


def a_registry_put_back_at_once_hands_out_no_id_that_loads_have_seen(scene: Scene) -> None:
    copy = scene.copy(scene.place.folder / "registry.db")
    used = _send_with_a_new_schema(scene)
    scene.stage.await_tier(OFFLINE, BATCH)
    scene.place.load(TOPIC)
    scene.place.kill("registry")
    copy.put_back()
    scene.place.restart("registry")
    _check_no_id_is_used_again(scene, used)


def _with(field: str) -> dict[str, Any]:
    """PageView with one more field."""
    return {**PAGE_VIEW, "fields": [*PAGE_VIEW["fields"], {"name": field, "type": "int", "default": 0}]}


def _send_with_a_new_schema(scene: Scene) -> int:
    """Ten acknowledged messages of a schema that the copy does not have; its id."""
    schema = _with("used")
    with SchemaRegistryClient(scene.place.registry) as registry:
        used = registry.register(TOPIC, schema)
    with scene.place.producer(HOME) as producer:
        for number in range(BATCH):
            event = {**EVENT, "url": "/", "used": number}
            producer.send(TOPIC, schema, event, time_ms=scene.stage.start + number, partition=0)
    return used


def _check_no_id_is_used_again(scene: Scene, used: int) -> None:
    with SchemaRegistryClient(scene.place.registry) as registry:
        for number in range(5):
            try:
                given = registry.register(f"another-{number}", _with(f"another{number}"))
            except MillraceError:
                continue  # refused, which is as good
            if given == used:
                raise Wrong(f"id {used} is of messages in {TOPIC}, and stands for another schema now")
        if registry.find_schema(used) not in (None, _with("used")):
            raise Wrong(f"id {used} stands for another schema")
        assert registry.register(TOPIC, _with("used")), "the schema that was lost is registered again"
