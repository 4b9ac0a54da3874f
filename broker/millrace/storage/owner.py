"""Whose log directory it is.

    <log_dir>/owner.json := {"cluster_id": "millrace-<32 hex digits>", "broker_id": 1}

Written by the first broker that uses the directory. Any other is refused: it would not find its own logs,
begin them anew and set those that are there aside. So would the owner itself behind a wiped ZooKeeper.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from millrace.errors import MillraceError
from millrace.storage.segment import sync_directory

OWNER_NAME = "owner.json"


def claim(log_dir: Path, cluster_id: str, broker_id: int) -> None:
    """Take the locked directory for this broker; MillraceError when it belongs to another."""
    path = log_dir / OWNER_NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        try:
            _write(path, {"cluster_id": cluster_id, "broker_id": broker_id})
        except OSError as error:
            raise MillraceError(f"cannot use the log directory {log_dir}: {error}") from error
        return
    except OSError as error:
        raise MillraceError(f"cannot use the log directory {log_dir}: {error}") from error
    try:
        owner = json.loads(text)
        found = (owner["cluster_id"], owner["broker_id"])
    except (ValueError, TypeError, KeyError):
        raise MillraceError(f"{path} is unreadable: remove it if the directory is this broker's") from None
    if found != (cluster_id, broker_id):
        raise MillraceError(
            f"log directory {log_dir} belongs to broker {found[1]} of cluster {found[0]}, this is broker "
            f"{broker_id} of {cluster_id}: if ZooKeeper was wiped restore its data, else give another log_dir"
        )


def _write(path: Path, owner: dict[str, object]) -> None:
    draft = path.with_suffix(".tmp")
    with draft.open("w") as file:
        json.dump(owner, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)
