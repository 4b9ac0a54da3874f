"""A name that a hostile client gives itself, and whether a text shows it without running it."""

from __future__ import annotations

MARK = "web\x1b[2J\r\n2026-01-01 PageView: complete\x07\x7f\x9b\u2028\u202e\u2066\u200b[red]"
"""A name that clears the screen, forges a line, turns the text around and would be markup of rich."""
FORGED = "2026-01-01 PageView: complete"


def check_escaped(text: str) -> None:
    """Assert that the mark is in a text, every time in a line with what stands before it, and nothing raw."""
    raw = {character for character in text.replace("\n", "") if not character.isprintable()} - {"\t"}
    assert not raw, f"raw characters {raw} in {text[:2000]!r}"
    assert FORGED in text, text[:2000]
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]


def check_json(text: str) -> None:
    """Assert that JSON has the mark with nothing of it raw."""
    check_escaped(text)
    assert text.isascii()
