"""What became of one item of a request that names several: each has an error of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.errors import BrokerError, ErrorCode

log = logging.getLogger(__name__)


def outcome_of(work: Callable[[], object], what: str) -> tuple[ErrorCode, str | None]:
    """Do `work`; NONE, or the code and the reason of what it raised. `what` names it in the log."""
    try:
        work()
    except BrokerError as error:
        return error.code, str(error)
    except Exception as error:
        log.exception("%s failed", what)
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return ErrorCode.NONE, None
