"""The versions that docs/protocol.md lists: written by hand, so tests hold code against them."""

from __future__ import annotations

import re

from tests.support import REPOSITORY

TEXT = (REPOSITORY / "docs" / "protocol.md").read_text()
_ROW = re.compile(r"^\| \w+ \| (\d+) \| (\d+) to (\d+) \|", re.MULTILINE)
LISTED = {int(key): range(int(low), int(high) + 1) for key, low, high in _ROW.findall(TEXT)}
"""API -> versions that a broker lists to its clients."""
