"""The demo's comparison catches what it must: a loss, a repeat, a stranger, and the two that cancel."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_demo.proof import Published, compare, loaded_files

PUBLISHED = [
    Published("PageView", "web-1", 11, [(0, 99)]),
    Published("PageView", "web-2", 22, [(0, 49), (60, 99)]),
]


def files(folder: Path, rows: list[tuple[int, int]]) -> dict[str, list[Path]]:
    """Two Parquet files with those (instance, sequence) rows."""
    paths = []
    for index, part in enumerate((rows[::2], rows[1::2])):
        header = pa.array([{"instance": instance, "sequence": sequence} for instance, sequence in part])
        paths.append(folder / f"part-{index}.parquet")
        pq.write_table(pa.table({"header": header}), paths[-1])
    return {"PageView": paths}


ALL = [(11, n) for n in range(100)] + [(22, n) for n in range(100) if not 50 <= n < 60]


def test_everything_once_has_no_findings(tmp_path: Path) -> None:
    proof = compare(PUBLISHED, files(tmp_path, ALL))
    assert (proof.published, proof.loaded, list(proof.findings)) == (190, 190, [])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ALL[3:], ["3 lost: PageView, server web-1, instance 11, sequences 0-2"]),
        ([*ALL, (22, 7), (22, 7)], ["1 duplicated: PageView, server web-2, instance 22, sequences 7"]),
        ([*ALL, (22, 55)], ["1 never acknowledged: PageView, server web-2, instance 22, sequences 55"]),
        ([*ALL, (33, 0)], ["1 never acknowledged: PageView, server unknown, instance 33, sequences 0"]),
        (
            [*ALL[1:], (22, 7)],
            [
                "1 lost: PageView, server web-1, instance 11, sequences 0",
                "1 duplicated: PageView, server web-2, instance 22, sequences 7",
            ],
        ),
    ],
)
def test_every_difference_is_named(tmp_path: Path, rows: list[tuple[int, int]], expected: list[str]) -> None:
    assert [str(finding) for finding in compare(PUBLISHED, files(tmp_path, rows)).findings] == expected


def test_a_row_of_a_record_header_counts_as_one_with_the_header_in_its_value(tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    rows = [*ALL[1:], (None, None)]
    instances, sequences = (pa.array(column, pa.int64()) for column in zip(*rows, strict=True))
    pq.write_table(pa.table({"_instance": instances, "_sequence": sequences}), file)
    assert [str(finding) for finding in compare(PUBLISHED, {"PageView": [file]}).findings] == [
        "1 lost: PageView, server web-1, instance 11, sequences 0",
        "1 never acknowledged: PageView, server unknown, instance -1, sequences -1",
    ]


def test_a_topic_without_files_is_lost_whole() -> None:
    proof = compare(PUBLISHED, {"PageView": []})
    assert proof.count("lost") == proof.published == 190


def test_what_is_compared_are_the_files_that_the_loads_name_and_no_strays(tmp_path: Path) -> None:
    attempt = tmp_path / "rows" / "0000000001-ab"
    attempt.mkdir(parents=True)
    for name in ("2015-05-17T10-0-00000000.parquet", "2015-05-17T10-1-00000000.parquet"):
        (attempt / name).touch()
    (tmp_path / "loads").mkdir()
    named = "rows/0000000001-ab/2015-05-17T10-0-00000000.parquet"
    manifest = {"files": [{"path": named}]}
    (tmp_path / "loads" / "0000000001.json").write_text(json.dumps(manifest))
    assert loaded_files(tmp_path) == [tmp_path / named]
    assert loaded_files(tmp_path / "none") == []
