"""Files of the topic that URIs in the table's metadata mean."""

from __future__ import annotations

import pytest

from millrace_warehouse.publish.contents import path_in_topic


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///w/clicks/rows/1/a.parquet", "rows/1/a.parquet"),
        ("file:/w/clicks/compacted/x/b.parquet", "compacted/x/b.parquet"),
        ("s3a://lake/w/clicks/table/metadata/v1.json", "table/metadata/v1.json"),
        ("file:///clicks/rows/clicks/rows/1/a.parquet", "rows/1/a.parquet"),
        ("file:///clicks/table/w/clicks/rows/1/a.parquet", "rows/1/a.parquet"),
        ("file:///w/clickstream/rows/1/a.parquet", None),
        ("file:///w/clicks_rows/1/a.parquet", None),
    ],
)
def test_a_file_is_known_by_its_place_below_the_topics_last_folder(uri: str, path: str | None) -> None:
    assert path_in_topic(uri, "clicks") == path
