"""A ZooKeeper whose answer to one write is lost: the write is made, and the client does not hear of it."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from millrace.zookeeper.session import Session


class _Lost:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def get(self, timeout: float) -> None:
        self._answer.get(timeout=timeout)
        raise ConnectionLoss


def lose_one_answer(session: Session, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the answer to the next call of this operation of the session's client, such as `delete_async`."""
    real = getattr(session.client, operation)

    def once(*arguments: Any, **options: Any) -> _Lost:
        monkeypatch.setattr(session.client, operation, real)
        return _Lost(real(*arguments, **options))

    monkeypatch.setattr(session.client, operation, once)
