"""The JSON answers of web services."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse


class JsonAnswer(JSONResponse):
    """JSON in ASCII: names in it can contain no control sequence for a terminal that shows it."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
