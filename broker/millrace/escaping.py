"""Escaping of text that clients and servers choose, before it is shown to people.

It is applied to printed lines, logs, labels of metrics and pages. JSON for scripts has escapes of its own.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of characters that move the cursor, end the line, reverse it or are invisible."""


def escaped(text: str) -> str:
    r"""Return the text as one line without hidden characters: ESC becomes `\x1b`, U+202E `\u202e`."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    is_hidden = unicodedata.category(character) in _HIDDEN
    return character.encode("unicode_escape").decode() if is_hidden else character


def escaped_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback or a schema, with each line escaped."""
    return "\n".join(map(escaped, text.split("\n")))
