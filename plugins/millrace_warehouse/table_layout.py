"""The layout of a table that its user asks for: partitions besides the hour, and the order of a file's rows.

    partition = ["bucket(16, memberId)", "days(placedAt)", "country"]     Spark's notation of transforms
    sort = ["url", "placedAt DESC NULLS LAST"]                            Spark's notation of sort fields

Iceberg's own notation, such as `bucket[16](memberId)`, is read as well. Knows neither columns nor pyiceberg,
which a task of a load without a layout does not import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.errors import ConfigError

_COLUMN = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TERM = re.compile(
    rf"""(?P<column>{_COLUMN})
    | (?P<name>[A-Za-z]+) \s* \( \s* (?P<of>{_COLUMN}) \s* \)
    | (?P<wide>[A-Za-z]+) \s* (?: \( \s* (?P<width>\d{{1,9}}) \s* , | \[ (?P<iceberg>\d{{1,9}}) \] \s* \( )
      \s* (?P<wide_of>{_COLUMN}) \s* \)""",
    re.VERBOSE | re.ASCII,
)
_SORT = re.compile(
    rf"(?P<column>{_COLUMN})(?:\s+(?P<direction>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?",
    re.ASCII | re.IGNORECASE,
)
_TIMES = {name: name.removesuffix("s") for name in ("years", "months", "days", "hours")}
_WIDE = ("bucket", "truncate")


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """One partition: a transform of a column."""

    transform: str
    """Iceberg's name of the transform, such as `bucket[16]` or `day`."""
    column: str
    """Name of the column; fields inside a column follow after dots."""

    @classmethod
    def parse(cls, text: str) -> PartitionTerm:
        """Parse `bucket(16, memberId)`, `days(placedAt)` or `country`.

        Raise ConfigError for anything else.
        """
        match = _TERM.fullmatch(text.strip())
        if match is not None and match["column"]:
            return cls("identity", match["column"])
        name = (match["name"] or match["wide"]).lower() if match is not None else ""
        if match is not None and match["name"]:
            time = _TIMES.get(name, name)
            if time in (*_TIMES.values(), "identity"):
                return cls(time, match["of"])
        elif match is not None and name in _WIDE and int(width := match["width"] or match["iceberg"]):
            return cls(f"{name}[{int(width)}]", match["wide_of"])
        raise ConfigError(
            f"partition {text!r} is not understood: write bucket(16, COLUMN), truncate(4, COLUMN),"
            " years(COLUMN), months(COLUMN), days(COLUMN), hours(COLUMN) or COLUMN"
        )

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        name, _, width = self.transform.rstrip("]").partition("[")
        return f"{name}({width}, {self.column})" if width else f"{name}s({self.column})"


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One field of a sort order."""

    column: str
    descending: bool
    nulls_first: bool

    @classmethod
    def parse(cls, text: str) -> SortTerm:
        """Parse `url` or `url DESC NULLS LAST`. Nulls are the smallest values unless the text names a place.

        Raise ConfigError for anything else.
        """
        match = _SORT.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"sort {text!r} is not understood: write COLUMN [ASC|DESC] [NULLS FIRST|LAST]")
        descending = (match["direction"] or "").upper() == "DESC"
        nulls = (match["nulls"] or ("LAST" if descending else "FIRST")).upper()
        return cls(match["column"], descending, nulls == "FIRST")

    def __str__(self) -> str:
        direction, nulls = "DESC" if self.descending else "ASC", "FIRST" if self.nulls_first else "LAST"
        return f"{self.column} {direction} NULLS {nulls}"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Partitions of a table besides the hour, and its sort order."""

    partition: tuple[PartitionTerm, ...] = ()
    sort: tuple[SortTerm, ...] = ()

    @classmethod
    def parse(cls, partition: Iterable[str], sort: Iterable[str]) -> TableLayout:
        """Parse the texts of a policy or a schema. Raise ConfigError for a wrong or repeated text."""
        partitions, sorts = map(PartitionTerm.parse, partition), map(SortTerm.parse, sort)
        layout = cls(tuple(partitions), tuple(sorts))
        _check_distinct("partition", [str(term) for term in layout.partition])
        _check_distinct("sort", [term.column for term in layout.sort])
        return layout

    def changed(self, partition: Sequence[str] | None, sort: Sequence[str] | None) -> TableLayout:
        """Return the layout that a policy asks for. None keeps the present partitions or order."""
        asked = TableLayout.parse(partition or (), sort or ())
        return TableLayout(
            self.partition if partition is None else asked.partition,
            self.sort if sort is None else asked.sort,
        )

    def __bool__(self) -> bool:
        return bool(self.partition or self.sort)

    def __str__(self) -> str:
        partition, sort = (", ".join(map(str, terms)) for terms in (self.partition, self.sort))
        return f"partition by {partition or 'hours alone'}; sort by {sort or 'nothing'}"


NO_LAYOUT = TableLayout()
"""Hours alone, rows in the order of the log."""


def _check_distinct(what: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        if text in texts[:number]:
            raise ConfigError(f"{what} names {text} twice: name it once")
