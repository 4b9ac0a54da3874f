"""The JSON that web services answer."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse


class JsonAnswer(JSONResponse):
    """JSON in ASCII, because people look at it in a terminal, too: no name in it runs anything there."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
