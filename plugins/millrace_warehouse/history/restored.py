"""Check that a topic's folder is at least as new as the loads that an auditor has counted.

A folder that was restored from an older copy looks intact, because its chain of loads only ends earlier. An
auditor that has counted later loads reveals the loss.
"""

from __future__ import annotations

from millrace_audit.answer import NewestLoad
from millrace_warehouse.history import layout
from millrace_warehouse.history.same_log import RefusedLog


def check_not_restored(topic: layout.Topic, counted: NewestLoad | None) -> None:
    """Raise RefusedLog unless the folder has the newest load, if any, that an auditor counted."""
    if counted is None:
        return
    path = layout.load_path(topic.name, counted.load)
    numbers = layout.load_numbers(topic, counted.load - 1)
    if counted.load not in numbers:
        what = f"{path} was counted by the auditor and is gone"
    elif layout.read_load(topic, counted.load).sha256 != counted.sha256:
        what = f"{path} is not the load that the auditor counted"
    else:
        return
    raise RefusedLog(
        f"{what}: was {topic.storage.uri(topic.name)} restored from an older copy? Restore a newer one; to go"
        f' on with this one, run `millrace audit {topic} --replace-loads --reason "..."` first'
    )
