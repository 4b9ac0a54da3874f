"""An event of the schema PageView that ships with Millrace, as tests send it."""

from __future__ import annotations

from typing import Any

from millrace_audit.reports.messages import schema_file

PAGE_VIEW = schema_file("PageView")
EVENT: dict[str, Any] = {
    "clientAddress": "10.0.0.1",
    "method": "GET",
    "url": "/",
    "protocol": "HTTP/1.1",
    "status": 200,
}
START = 1_431_856_800_000
"""2015-05-17T10:00Z in ms: the time of the first one."""
