"""ElectUnclean, an API of Millrace's own: a named replica goes on with what it has."""

from __future__ import annotations

from millrace.wire.fields import Message, i16, i32, string


class ElectUncleanRequest(Message):
    """Which replica of which partition, and why."""

    topic: str = string()
    partition: int = i32()
    replica: int = i32()
    reason: str = string()  # what the operator says, for the log


class ElectUncleanResponse(Message):
    """Whether it may."""

    error_code: int = i16()
    error_message: str | None = string(null_since=0)
