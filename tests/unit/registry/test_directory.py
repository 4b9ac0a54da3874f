"""Findings of `schemas check` without a registry: syntax, names and the header that the audit reads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from millrace.cli import cli
from millrace.errors import MillraceError
from millrace_registry.avro_schema import parse
from millrace_registry.directory import check, compare
from millrace_registry.fields import changed_fields

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


def write(folder: Path, name: str, *fields: Any, **attributes: Any) -> None:
    schema = {"type": "record", "name": name.rpartition("/")[2], "namespace": "millrace.audit"}
    path = folder / f"{name}.avsc"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps({**schema, "fields": list(fields), **attributes}))


@pytest.mark.parametrize("fields", [PAGE_VIEW["fields"][1:], []])
def test_a_schema_without_a_header_passes_with_a_note_unless_headers_must_be_in_values(
    tmp_path: Path, fields: Any
) -> None:
    (tmp_path / "PageView.avsc").write_text(json.dumps({**PAGE_VIEW, "fields": fields}))
    shutil.copy(SCHEMAS / "SearchQuery.avsc", tmp_path)
    shutil.copy(SCHEMAS / "AuditCount.avsc", tmp_path)
    by_default = CliRunner().invoke(cli, ["schemas", "check", str(tmp_path)])
    assert by_default.exit_code == 0
    assert by_default.output.count("audited by the record header, or not at all") == 1
    in_values = CliRunner().invoke(cli, ["schemas", "check", str(tmp_path), "--header", "value"])
    assert in_values.exit_code == 1
    assert in_values.output.count("the first field is not `header`") == 1
    assert "1 of 3 schemas cannot be used" in str(in_values.exception)
    plain = CliRunner().invoke(cli, ["schemas", "check", str(tmp_path), "--plain", "--header", "value"])
    assert "contradict each other: give one" in str(plain.exception)


def test_a_refusal_says_what_to_write_and_what_it_says_is_taken(tmp_path: Path) -> None:
    without = {**PAGE_VIEW, "fields": PAGE_VIEW["fields"][1:], "namespace": "other"}
    said = problem(tmp_path, {**without, "fields": [{"name": "header", "type": "string"}]}) or ""
    header = json.loads(said.partition("Write as the first field: ")[2])
    assert problem(tmp_path, {**without, "fields": [header, *without["fields"]]}) is None


def test_sub_folders_are_looked_at_and_a_name_is_one_subject(tmp_path: Path) -> None:
    write(tmp_path, "A")
    write(tmp_path, "more/deep/B")
    (tmp_path / "more" / "Broken.avsc").write_text("no schema")
    problems = {file.subject: file.problem for file in check(tmp_path)}
    assert problems.keys() == {"A", "B", "Broken"}
    assert "not JSON" in (problems["Broken"] or "")
    write(tmp_path, "more/A")
    assert [file.problem for file in check(tmp_path) if file.subject == "A"] == [
        "another file has the same name: a name is one subject"
    ] * 2


def test_topics_that_would_share_a_table_are_named_unless_their_schemas_are_plain(tmp_path: Path) -> None:
    for name in ("orders-json", "orders_json", "shop.orders"):
        schema = {**PAGE_VIEW, "name": name if name == "orders_json" else "Order"}
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    shared = "topics orders-json and orders_json would share the table millrace.orders_json: rename one"
    assert [file.problem for file in check(tmp_path)] == [shared, shared, None]
    assert [file.problem for file in check(tmp_path, plain=True)] == [None] * 3


def test_a_file_may_use_the_types_of_other_files_and_is_registered_with_them(tmp_path: Path) -> None:
    write(tmp_path, "Z", {"name": "x", "type": "int"})
    write(tmp_path, "sub/M", {"name": "z", "type": "Z"})
    write(tmp_path, "A", {"name": "m", "type": "millrace.audit.M"}, {"name": "z", "type": ["null", "Z"]})
    write(tmp_path, "Lost", {"name": "m", "type": "Nowhere"})
    files = {file.subject: file for file in check(tmp_path)}
    assert "unknown type 'Nowhere'" in (files.pop("Lost").problem or "")
    assert [file.problem for file in files.values()] == [None] * 3
    alone = parse(json.dumps(files["A"].json)).tree
    assert alone["fields"][0]["type"]["fields"][0]["type"]["fields"] == [{"name": "x", "type": "int"}]
    assert files["Z"].json == json.loads((tmp_path / "Z.avsc").read_text())


def test_plain_schemas_may_have_any_name_and_need_no_header(tmp_path: Path) -> None:
    (tmp_path / "orders-value.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": []}))
    (tmp_path / "orders-key.avsc").write_text('"string"')
    assert [file.problem for file in check(tmp_path, plain=True)] == [None, None]
    assert None not in [file.problem for file in check(tmp_path)]


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A folder of schemas inside a repository, with what was changed since the last commit."""
    folder = tmp_path / "repository" / "schemas"
    for name in ("Same", "Good", "sub/Bad", "Gone"):
        write(folder, name, {"name": "a", "type": "int"})
    git(folder.parent, "init")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-m", "all")
    write(
        folder, "Good", {"name": "a", "type": "long"}, {"name": "b", "type": ["null", "int"], "default": None}
    )
    write(folder, "sub/Bad", {"name": "a", "type": "string"})
    write(folder, "New")
    (folder / "Gone.avsc").unlink()
    return folder


def test_a_revision_of_git_is_what_schemas_are_compared_with(committed: Path) -> None:
    changes = {change.subject: change for change in compare(committed, "HEAD")}
    assert {subject: change.state for subject, change in changes.items()} == {
        "Same": "unchanged",
        "Good": "new version",
        "Bad": "incompatible",
        "New": "new",
        "Gone": "removed",
    }
    assert changes["Bad"].reasons == ("a: string cannot read int",)
    assert changes["Good"].fields == ("~ a: long was int", "+ b: null | int = null")
    with pytest.raises(MillraceError, match="git ls-tree: "):
        compare(committed, "no-such-revision")


def test_check_against_a_revision_fails_for_what_cannot_read_the_old_data(committed: Path) -> None:
    result = CliRunner().invoke(cli, ["schemas", "check", str(committed), "--against", "HEAD"])
    assert str(result.exception).startswith("1 of 5 schemas cannot be used")
    assert f"{committed}/sub/Bad.avsc: a: string cannot read int; ~ a: string was int" in result.stdout
    assert f"{committed}/Gone.avsc: removed; its subject stays in the registry" in result.stdout
    assert f"{committed}/Same.avsc: ok" in result.stdout
    write(committed, "sub/Bad", {"name": "a", "type": "int"})
    result = CliRunner().invoke(cli, ["schemas", "check", str(committed), "--against", "HEAD", "--json"])
    assert result.exit_code == 0
    notes = {Path(row["file"]).stem: row["notes"] for row in json.loads(result.stdout)}
    assert notes["Good"] == ["~ a: long was int", "+ b: null | int = null"]


def test_the_fields_that_change_are_named_inside_lists_unions_and_recursive_types() -> None:
    def of(kind: str) -> Any:
        inner = {
            "type": "record",
            "name": "I",
            "fields": [{"name": "x", "type": kind}, {"name": "r", "type": "R"}],
        }
        fields = [{"name": "many", "type": {"type": "array", "items": ["null", inner]}}]
        return parse(json.dumps({"type": "record", "name": "R", "fields": fields}))

    assert changed_fields(of("int"), of("long")) == ["~ many.x: long was int"]
    assert changed_fields(of("int"), of("int")) == ["no field differs: names, documentation or attributes do"]


def test_a_long_type_that_many_fields_share_is_not_written_out_for_each() -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["S" + "x" * 100_000]}
    shared = {"type": "record", "name": "I", "fields": [{"name": "e", "type": symbols}]}
    fields = [{"name": f"f{n}", "type": "I" if n else shared} for n in range(800)]
    nothing, wide = (
        parse(json.dumps({"type": "record", "name": "R", "fields": each})) for each in ([], fields)
    )
    lines = changed_fields(nothing, wide)
    assert lines[-1] == "there are too many fields at deeper levels to be compared"
    assert sum(map(len, lines)) < 1_000_000


CI = SCHEMAS.parent / "deploy" / "ci"
ROLE = CI.parent / "ansible" / "roles" / "millrace" / "defaults" / "main.yml"


@pytest.mark.parametrize("file", ["github-actions.yml", "gitlab-ci.yml", "pre-commit-config.yaml"])
def test_the_ready_made_checks_call_commands_that_there_are(committed: Path, file: str) -> None:
    write(committed, "sub/Bad", {"name": "a", "type": "int"})
    commands = re.findall(r"millrace (schemas check [^\n]*)", (CI / file).read_text())
    assert commands
    for command in commands:
        words = (
            re.sub(r'"[^"]*"|origin/main', "HEAD", command).replace(" schemas --", f" {committed} --").split()
        )
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, (words, result.output, result.exception)


@pytest.mark.parametrize("file", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ready_made_checks_install_the_wheel_by_a_name_that_it_has(file: str) -> None:
    (pattern,) = re.findall(r"pip install --no-deps (\S+)", (CI / file).read_text())
    (wheel,) = re.findall(r"^millrace_package: (\S+)$", ROLE.read_text(), re.MULTILINE)
    assert fnmatch(wheel, pattern)


@pytest.mark.parametrize("file", ["github-actions.yml", "gitlab-ci.yml", "pre-commit-config.yaml"])
def test_the_ready_made_checks_have_the_parts_that_each_service_reads(file: str) -> None:
    parsed = yaml.safe_load((CI / file).read_text())
    if file == "github-actions.yml":
        assert set(parsed[True]) == {"pull_request", "push"}  # YAML 1.1 reads the key `on` as true
        (job,) = parsed["jobs"].values()
        assert job["runs-on"]
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert all(set(step) & {"uses", "run"} for step in job["steps"])
    elif file == "gitlab-ci.yml":
        jobs = [job for name, job in parsed.items() if not name.startswith(".")]
        assert all(job["extends"] == ".schemas" and job["rules"] for job in jobs)
        commands = [command for job in jobs for command in job["script"]]
    else:
        (hook,) = parsed["repos"][0]["hooks"]
        assert parsed["repos"][0]["repo"] == hook["language"].replace("system", "local")
        assert re.search(hook["files"], "schemas/sub/A.avsc")
        commands = [hook["entry"]]
    verbs = [command.split()[2] for command in commands if command.startswith("millrace schemas")]
    assert verbs == (["check"] if file.startswith("pre-commit") else ["check", "plan", "apply"])
