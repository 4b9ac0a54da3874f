"""Charts as SVG, drawn on the server: a column for each slot of time, heights from 0 to 100.

A chart needs no script and no inline style; the style sheet stretches it and has its colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from markupsafe import Markup

_STEPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 4.8, 6, 8, 10)
"""Highest values of an axis that a quarter divides without odd figures."""


def axis_end(highest: float) -> float:
    """Return a round number that is not below `highest`."""
    if highest <= 0:
        return 1
    power: float = 10 ** math.floor(math.log10(highest))
    return next(step * power for step in _STEPS if step * power >= highest)


def drawing(slots: int, *parts: str, label: str, cls: str = "", is_read: bool = False) -> Markup:
    """Return a chart with an accessible name. With `is_read`, scripts show the numbers of a slot."""
    read = Markup(' data-slots="{}"').format(slots) if is_read else ""
    head = Markup(
        '<svg class="{}"{} viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" aria-label="{}">'
    )
    return head.format(cls, read, slots, label) + Markup("".join(parts)) + Markup("</svg>")


def grid(lines: int) -> str:
    """Return horizontal lines that divide the height."""
    return "".join(f'<path class="g" d="M0 {100 * line / lines:.1f}H9999"/>' for line in range(lines + 1))


def steps(values: Sequence[float | None], end: float, cls: str) -> str:
    """Return a line with a step for each value, and gaps for None."""
    path, pen = "", "M"
    for slot, value in enumerate(values):
        if value is None:
            pen = "M"
        else:
            path += f"{pen}{slot} {_y(value, end)}H{slot + 1}"
            pen = "L"
    return f'<path class="{cls}" d="{path}"/>' if path else ""


def area(values: Sequence[float | None], end: float, cls: str) -> str:
    """Return the filled area below the values; None is 0."""
    path = "".join(f"V{_y(value or 0, end)}H{slot + 1}" for slot, value in enumerate(values))
    return f'<path class="{cls}" d="M0 100{path}V100Z"/>'


def runs(kinds: Sequence[str], height: int = 100) -> str:
    """Return a rectangle for each run of equal kinds, which are its class; none for an empty kind."""
    drawn, at = "", 0
    for kind, group in groupby(kinds):
        width = len([*group])
        if kind:
            drawn += f'<rect class="{kind}" x="{at}" width="{width}" height="{height}"/>'
        at += width
    return drawn


def bar(share: float, cls: str = "") -> Markup:
    """Return a bar that is full at 1."""
    width = max(min(share, 1) * 100, 0.8 if share > 0 else 0)
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="t" width="100" height="1"/><rect class="v" width="{}" height="1"/></svg>'
    ).format(cls, f"{width:.1f}")


@lru_cache(maxsize=1024)
def spark(values: tuple[int, ...], label: str) -> Markup:
    """Return a small chart of values beside their number."""
    return drawing(
        len(values), area(values, max(values, default=0) * 1.05 or 1, "a"), label=label, cls="spark"
    )


def _y(value: float, end: float) -> str:
    return f"{100 - 100 * min(max(value, 0), end) / end:.4g}"
