"""Values of a command line's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.option_values import absolute_warehouse, parse_age, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500MB", 500_000_000), ("2 GiB", 2 << 30), ("3kib", 3072), ("1T", None)]
)
def test_sizes_are_decimal_unless_they_say_otherwise(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(MillraceError):
            parse_bytes(text, "--max-bytes")
    else:
        assert parse_bytes(text, "--max-bytes") == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("90m", 5_400), ("0s", 0)]
)
def test_an_age_has_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text, "--older-than") == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1.5d"])
def test_what_is_no_age_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--older-than .* is not an age like 30d"):
        parse_age(text, "--older-than")


def test_a_local_warehouse_is_the_same_folder_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("w", str(tmp_path / "w"), f"file://{tmp_path}/w"):
        assert absolute_warehouse(text, "--warehouse") == str(tmp_path / "w")
    with pytest.raises(ConfigError):
        absolute_warehouse("ftp://host/w", "--warehouse")
