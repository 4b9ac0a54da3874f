"""ElectUnclean, an API of Millrace's own: make a named replica leader with the messages that it has."""

from __future__ import annotations

from millrace.wire.fields import ApiMessage, i16, i32, string
from millrace.wire.messages import ApiKey


class ElectUncleanRequest(ApiMessage, request_of=ApiKey.ELECT_UNCLEAN):
    """The partition, the replica that should lead it, and the operator's reason."""

    topic: str = string()
    partition: int = i32()
    replica: int = i32()
    reason: str = string()  # from the operator, for the log


class ElectUncleanResponse(ApiMessage, response_of=ApiKey.ELECT_UNCLEAN):
    """The result: no error, or the reason for the refusal."""

    error_code: int = i16()
    error_message: str | None = string(null_since=0)
