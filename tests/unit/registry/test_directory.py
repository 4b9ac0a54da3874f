"""What `schemas check` finds without a registry: syntax, names and the header that the audit reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError
from millrace_registry.directory import check

SCHEMAS = Path(__file__).resolve().parents[3] / "schemas"
PAGE_VIEW = json.loads((SCHEMAS / "PageView.avsc").read_text())


def problem(folder: Path, schema: Any, name: str = "PageView") -> str | None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    (folder / f"{name}.avsc").write_text(text)
    (file,) = check(folder)
    return file.problem


def with_header(header: Any) -> dict[str, Any]:
    return {**PAGE_VIEW, "fields": [{"name": "header", "type": header}, *PAGE_VIEW["fields"][1:]]}


def test_every_schema_of_ours_is_right() -> None:
    files = check(SCHEMAS)
    assert {"PageView", "SearchQuery"} <= {file.subject for file in files}
    assert [file.problem for file in files] == [None] * len(files)


HEADER = PAGE_VIEW["fields"][0]["type"]


def test_what_would_break_the_audit_is_named(tmp_path: Path) -> None:
    assert problem(tmp_path, PAGE_VIEW) is None
    assert "not JSON" in (problem(tmp_path, "{") or "")
    assert "unknown type 'Foo'" in (problem(tmp_path, '"Foo"') or "")
    assert problem(tmp_path, '"int"') == "is not a record"
    assert problem(tmp_path, {**PAGE_VIEW, "name": "Page"}) == (
        "the record is named Page: name file and record alike"
    )
    assert "has no namespace" in (problem(tmp_path, {**PAGE_VIEW, "namespace": ""}) or "")
    assert "first field is not `header`" in (
        problem(tmp_path, {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:]}) or ""
    )
    assert "first field is not `header`" in (problem(tmp_path, {**PAGE_VIEW, "fields": []}) or "")
    assert "not the record millrace.events.AuditHeader" in (problem(tmp_path, with_header("string")) or "")
    assert "not the record" in (problem(tmp_path, with_header({**HEADER, "namespace": "other"})) or "")


@pytest.mark.parametrize("index", range(5))
def test_a_header_field_that_is_missing_moved_or_retyped_is_named(tmp_path: Path, index: int) -> None:
    fields = HEADER["fields"]
    name = fields[index]["name"]
    for changed in (
        fields[:index] + fields[index + 1 :],
        [*fields[:index], {"name": name, "type": "double"}, *fields[index + 1 :]],
        [*fields[:index], {"name": "new", "type": "string"}, *fields[index:]],
    ):
        found = problem(tmp_path, with_header({**HEADER, "fields": changed}))
        assert found is not None
        assert found.startswith(f"millrace.events.AuditHeader must have {name}: ")


def test_a_field_after_the_headers_own_does_not_hinder_the_audit(tmp_path: Path) -> None:
    fields = [*HEADER["fields"], {"name": "region", "type": "string", "default": ""}]
    assert problem(tmp_path, with_header({**HEADER, "fields": fields})) is None


def test_audit_records_need_no_header(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "AuditX", "namespace": "millrace.audit", "fields": []}
    assert problem(tmp_path, schema, "AuditX") is None


def test_a_folder_without_schemas_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match=r"no \.avsc file"):
        check(tmp_path)
    with pytest.raises(MillraceError, match="no folder"):
        check(tmp_path / "none")
