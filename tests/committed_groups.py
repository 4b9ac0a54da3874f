"""Many groups that have committed once, written into ZooKeeper as a coordinator leaves them."""

from __future__ import annotations

from contextlib import closing
from uuid import UUID

from millrace.zookeeper.session import Session
from millrace_broker.coordination.groups import CommittedOffset, encode_offset

OFFSET = 7
"""The offset that each of them has committed of partition 0."""


def write_groups(zookeeper: str, cluster: str, topic: str, topic_id: UUID, count: int) -> list[str]:
    """Write `count` groups without members; return their names."""
    names = [f"console-consumer-{number:05d}" for number in range(count)]
    offset = encode_offset(CommittedOffset(offset=OFFSET, time_ms=0, topic_id=topic_id))
    with closing(Session.connect(zookeeper)) as session:
        session.call(session.client.ensure_path_async, f"/{cluster}/consumers")
        for name in names:
            path = f"/{cluster}/consumers/{name}"
            nodes = {path: b'{"kind": "classic"}', f"{path}/ids": b"", f"{path}/owners": b""}
            nodes |= {
                f"{path}/offsets": b"",
                f"{path}/offsets/{topic}": b"",
                f"{path}/offsets/{topic}/0": offset,
            }
            change = session.client.transaction()
            for node, data in nodes.items():
                change.create(node, data)
            last = change.commit_async()
        last.get(timeout=60)
    return names
