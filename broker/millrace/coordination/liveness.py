"""Whether the broker behind a registration in ZooKeeper can still be running.

A registration outlives its broker by the session's timeout. Knows no ZooKeeper: a registration is what
cluster.py has written there.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any


def is_dead(holder: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """True when whoever registered this can no longer run, though its session has not expired yet."""
    if holder["boot"] == ours["boot"]:
        return True  # our own, of a session that we have lost
    if holder["machine"] != ours["machine"]:
        return False
    # We listen on our own address, so nobody else does; and a live broker's port is never refused.
    return (holder["host"], holder["port"]) == (ours["host"], ours["port"]) or (
        listens(holder["host"], holder["port"]) is False
    )


def listens(host: str, port: int) -> bool | None:
    """Whether a server accepts connections there; None when nothing can be told."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True
