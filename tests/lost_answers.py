"""A ZooKeeper whose answer to one write is lost: the write is made, and the client does not hear of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss


class _Lost:
    def __init__(self, answer: Any, meanwhile: Callable[[], object]) -> None:
        self._answer, self._meanwhile = answer, meanwhile

    def get(self, timeout: float) -> None:
        self._answer.get(timeout=timeout)
        self._meanwhile()
        raise ConnectionLoss


def lose_one_answer(
    client: Any,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Lose the answer to the next call of this operation of a client or a class, such as `delete_async`.

    `meanwhile` is called between the write and the client's next try.
    """
    real = getattr(client, operation)

    def once(*arguments: Any, **options: Any) -> _Lost:
        monkeypatch.setattr(client, operation, real)
        return _Lost(real(*arguments, **options), meanwhile)

    monkeypatch.setattr(client, operation, once)
