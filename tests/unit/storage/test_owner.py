"""A log directory belongs to one broker of one cluster, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace.storage.owner import claim


def test_a_directory_is_claimed_once_and_stays_its_owners(tmp_path: Path) -> None:
    claim(tmp_path, "millrace-1", 1)
    claim(tmp_path, "millrace-1", 1)
    with pytest.raises(MillraceError, match="belongs to broker 1 of cluster millrace-1, this is broker 2 of"):
        claim(tmp_path, "millrace-1", 2)
    with pytest.raises(MillraceError, match="ZooKeeper was wiped"):
        claim(tmp_path, "millrace-2", 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster_id": 1}'])
def test_an_owner_nobody_can_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "owner.json").write_text(text)
    with pytest.raises(MillraceError, match=r"owner\.json is unreadable"):
        claim(tmp_path, "millrace-1", 1)
