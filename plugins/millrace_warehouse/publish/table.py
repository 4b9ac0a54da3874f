"""A topic's Iceberg table: its creation, its publication, and the check that the two agree.

    millrace.format, .topic                       format and owner of the table
    millrace.publication                          its number, with .path and .sha256 of its manifest
    millrace.through, .schema                     the newest load that was considered; the schema's number
    millrace.complete-from, .complete-until       the complete hours, without a gap

These properties survive changes by other programs, compaction and expiry; a snapshot's summary may not. The
publication's own commit sets them. A rollback keeps them, so the rows are counted, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.types import NestedField, PrimitiveType, StringType

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.ledger import add_to_ledger, read_entry
from millrace_warehouse.history.manifest import LoadManifest, Publication, encode
from millrace_warehouse.history.schemas import read_schema, schema_numbers
from millrace_warehouse.iceberg_layout import partition_spec
from millrace_warehouse.publish.branch_commit import LayoutChange, head_of
from millrace_warehouse.publish.catalog import create_table, load_table, table_identifier
from millrace_warehouse.publish.committer import TableChange, branch_files, commit
from millrace_warehouse.publish.layouts import TableLayouts, is_partitioned_by
from millrace_warehouse.races import Conflict
from millrace_warehouse.table_layout import NO_LAYOUT

FORMAT = "millrace.format"
TOPIC = "millrace.topic"
NUMBER = "millrace.publication"
PATH = "millrace.publication.path"
SHA256 = "millrace.publication.sha256"
RUN_ID = "millrace.run-id"
"""Property of a snapshot's summary only: the run that made the snapshot."""
THROUGH = "millrace.through"
SCHEMA = "millrace.schema"
COMPLETE_FROM = "millrace.complete-from"
COMPLETE_UNTIL = "millrace.complete-until"
_COUNTED = ("_time", "_topic_partition", "_offset", "_timestamp", "_load")
SETTINGS = {
    "format-version": "2",
    # For commits by other programs: our own manifests are no smaller.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.target-size-bytes": str(64 << 10),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "history.expire.max-snapshot-age-ms": str(24 * 3600 * 1000),
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.default": "none",
    # For files of other programs, too: rows are counted by load, and found by time.
    **{f"write.metadata.metrics.column.{name}": "full" for name in _COUNTED},
}


class TableChanged(MillraceError):
    """The table differs from its newest publication: it was changed, lost or restored."""


def find_table(catalog: Catalog, topic: str) -> Table | None:
    """Return the topic's table as it is now, or None.

    Raise MillraceError when the table is another topic's.
    """
    identifier = table_identifier(topic)
    table = load_table(catalog, identifier)
    if table is not None:
        _check_owner(catalog, topic, table)
    return table


def has_moved(catalog: Catalog, topic: layout.Topic, table: Table) -> bool:
    """Return True if another run has changed `main`, or recreated the table, since the table was read."""
    now = find_table(catalog, topic.name)
    return now is not None and _main_of(now) != _main_of(table)


def _main_of(table: Table) -> tuple[object, int | None]:
    return table.metadata.table_uuid, head_of(table, MAIN_BRANCH)


def _check_owner(catalog: Catalog, topic: str, table: Table) -> None:
    owner = table.properties.get(TOPIC)
    if owner != topic:
        whose = f"topic {owner}" if owner else "no topic of Millrace"
        raise MillraceError(
            f"the table {'.'.join(table_identifier(topic))} of catalog {catalog.name} belongs to {whose}:"
            f" give topic {topic} another name, or another catalog with --catalog"
        )


def require_loads(catalog: Catalog, topic: layout.Topic) -> LoadManifest:
    """Return the newest load.

    Raise MillraceError when there is none, and name the table if it has rows of lost loads.
    """
    if (newest := layout.newest_load(topic)) is not None:
        return newest
    table = find_table(catalog, topic.name)
    if table is None or THROUGH not in table.properties:
        return layout.require_load(topic)
    raise MillraceError(
        f"{topic.storage.root} has no load of {topic}, and its table in catalog {catalog.name} has rows of"
        f" loads 1 to {table.properties[THROUGH]}: mount the warehouse, or correct --warehouse; load nothing"
        " before that"
    )


def make_table(catalog: Catalog, topic: layout.Topic, settings: Mapping[str, str] = SETTINGS) -> Table:
    """Create the topic's empty table, or return another run's empty table.

    Raise Conflict when another run's table has rows already: the rows to add were chosen for an empty table
    and would be there twice.

    Each catalog assigns its own column ids. The catalogs of pyiceberg number all top-level columns first, as
    our files do. SeaweedFS numbers each column together with the fields inside it. So that the ids agree, a
    column with fields inside is created as a string in other catalogs. The first publication's commit changes
    it to its real type, with the ids of our files. The table is still empty then, so no row was written as a
    string.
    """
    first = read_schema(topic, 1).schema
    of_pyiceberg = isinstance(catalog, MetastoreCatalog)
    columns = first if of_pyiceberg else Schema(*(_without_fields(field) for field in first.fields))
    identifier = table_identifier(topic.name)
    properties = {
        **settings,
        FORMAT: "1",
        TOPIC: topic.name,
        # Files of other programs lie beside the files of `compact`.
        "write.data.path": topic.storage.uri(layout.Folder.COMPACTED.path(topic.name)),
    }
    location = topic.storage.uri(layout.Folder.TABLE.path(topic.name))
    table = create_table(catalog, identifier, columns, partition_spec(columns), location, properties)
    _check_owner(catalog, topic.name, table)
    if table.current_snapshot() is not None:
        raise Conflict(f"another run has just made {'.'.join(identifier)}, and published")
    ids = {field.name: field.field_id for field in table.schema().fields}
    if ids != {field.name: field.field_id for field in first.fields} or table.spec().spec_id != 0:
        raise MillraceError(
            f"catalog {catalog.name} has given the columns of {'.'.join(identifier)} its own ids, which"
            f" differ from those in the files of {topic}: drop the table, and use another catalog with"
            " --catalog"
        )
    return table


def _without_fields(field: NestedField) -> NestedField:
    if isinstance(field.field_type, PrimitiveType):
        return field
    return NestedField(field.field_id, field.name, StringType())


def publication_of(topic: layout.Topic, table: Table | None) -> Publication | None:
    """Return the manifest of the table's publication, or None before the first publication.

    Raise MillraceError if the manifest is missing. Raise TableChanged if it was edited, or if a later
    publication exists: then the table was dropped, or the catalog is older than the warehouse.
    """
    properties = table.properties if table is not None else {}
    number = int(properties.get(NUMBER, "0"))
    publication = None
    if number:
        publication = layout.read_checked(topic.storage, Publication, properties[PATH])
        if publication.sha256 != properties[SHA256]:
            raise TableChanged(
                f"{properties[PATH]} is not the file that the table names: restore it from a copy, or run"
                f" `millrace publish {topic} --rebuild`"
            )
        if read_entry(topic.storage, properties[PATH]) is None:  # the run that made it has died since
            add_to_ledger(topic.storage, properties[PATH], publication)
    # This sorts after every name of this number, because "-" sorts before ".".
    later = topic.recorded(layout.Folder.PUBLICATIONS, after=f"{number:010d}.")
    if later:
        state = "does not exist" if table is None else f"is at publication {number}"
        raise TableChanged(
            f"the table of {topic} {state}, and publication {int(later[-1][:10])} was made: it was dropped,"
            " or its catalog is older than the warehouse; give the right catalog, or rebuild the table"
            f" with `millrace publish {topic} --rebuild`"
        )
    return publication


def published_table(catalog: Catalog, topic: layout.Topic) -> tuple[Table | None, Publication | None]:
    """Return the topic's table and its newest publication. Raise TableChanged when the two disagree.

    Both are read again when another run has committed between the two readings.
    """
    while True:
        table = find_table(catalog, topic.name)
        try:
            publication = publication_of(topic, table)
            if table is not None:
                check_table(table, publication)
                if publication is not None:
                    check_columns(table, topic, publication.schema)
            return table, publication
        except TableChanged:
            again = find_table(catalog, topic.name)
            if getattr(again, "metadata_location", None) == getattr(table, "metadata_location", None):
                raise


def check_table(table: Table, publication: Publication | None) -> None:
    """Raise TableChanged unless the table has as many rows as its newest publication left, and no deletes.

    A rollback, and a DELETE or INSERT by other programs, are noticed here; a compaction passes. Two changes
    whose numbers of rows cancel out are found by `millrace verify`, which counts rows by load and hour.
    """
    rows, deletes = counted_rows(table)
    expected = publication.rows if publication is not None else 0
    topic = table.properties[TOPIC]
    number = publication.number if publication is not None else 0
    if deletes:
        what = f"has {deletes} delete files"
    elif rows != expected:
        what = f"has {rows:,} rows, publication {number} left {expected:,}"
    elif left_out := snapshot_left_out(table, number):
        what = f"has not snapshot {left_out} of publication {number} in its main branch"
    else:
        return
    raise TableChanged(
        f"the table of {topic} {what}: another program has rolled it back, or changed its rows. See with"
        f" `millrace verify` which ones; then undo the change, or run `millrace publish {topic} --rebuild`"
    )


def snapshot_left_out(table: Table, number: int) -> int | None:
    """Return a publication's snapshot if it is not an ancestor of main; None if it is, or is not known.

    This reveals a rollback to before a re-load, after which the number of rows may be the same. The ancestors
    are not known when an expiry has removed those between main's head and the publication's snapshot.
    """
    line = {
        snapshot.snapshot_id: snapshot.sequence_number or 0
        for snapshot in ancestors_of(table.current_snapshot(), table.metadata)
    }
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if summary.get(NUMBER) == str(number) and snapshot.snapshot_id not in line:
            is_known = min(line.values(), default=0) < (snapshot.sequence_number or 1)
            return snapshot.snapshot_id if is_known else None
    return None


def check_columns(table: Table, topic: layout.Topic, number: int) -> None:
    """Raise TableChanged unless the table has the columns and the partitions of a schema.

    The columns may be those of a later schema, which branch `live` needs before `main`.
    """
    if not is_partitioned_by(table.spec(), read_schema(topic, number)):
        raise TableChanged(
            f"another program has changed the partitions of the table of {topic} to {table.spec()}: run"
            f" `millrace publish {topic} --rebuild`, which drops and rebuilds the table"
        )
    if missing_columns(topic, table, number) is not None:
        raise TableChanged(
            f"another program has changed the columns of the table of {topic}: undo the change, or run"
            f" `millrace publish {topic} --rebuild`; use `millrace promote` to change columns"
        )


def is_partitioned_as_made(topic: layout.Topic, table: Table) -> bool:
    """Return True if the table has the partitions that its newest publication left."""
    return is_partitioned_by(table.spec(), read_schema(topic, int(table.properties.get(SCHEMA, "1"))))


def has_columns(table: Table, columns: Schema) -> bool:
    """Return True if every column has the same id, name and type; its documentation may differ."""
    return _described(table.schema()) == _described(columns)


def missing_columns(topic: layout.Topic, table: Table, number: int) -> Schema | None:
    """Return the columns of a schema, or None if the table has them, or those of a later schema."""
    columns = read_schema(topic, number).schema
    if has_columns(table, columns):
        return None
    later = (each for each in schema_numbers(topic) if each > number)
    return None if any(has_columns(table, read_schema(topic, each).schema) for each in later) else columns


def _described(schema: Schema) -> dict[int, tuple[str, str]]:
    return {
        id_: (field.name, str(field.field_type) if isinstance(field.field_type, PrimitiveType) else "")
        for id_, field in index_by_id(schema).items()
    }


def counted_rows(table: Table, branch: str = MAIN_BRANCH) -> tuple[int, int]:
    """Return the number of rows of a branch's head and of its delete files: by its summary, else counted."""
    head = table.metadata.snapshot_by_name(branch)
    if head is None:
        return 0, 0
    totals: Any = head.summary.additional_properties if head.summary is not None else {}
    deletes = int(totals.get("total-delete-files", "0"))
    if "total-records" in totals:
        return int(totals["total-records"]), deletes
    return sum(file.record_count for file in branch_files(table, branch=branch)), deletes


def properties_of(publication: Publication, path: str) -> dict[str, str]:
    """Return the properties that a commit sets on the table, and in the snapshot's summary."""
    return {
        NUMBER: str(publication.number),
        PATH: path,
        SHA256: publication.sha256,
        THROUGH: str(publication.loads.load),
        SCHEMA: str(publication.schema),
        COMPLETE_FROM: publication.complete_from or "",
        COMPLETE_UNTIL: publication.complete_until or "",
    }


def commit_publication(
    context: Context,
    table: Table,
    publication: Publication,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    layouts: TableLayouts,
    *,
    head_only: bool = False,
) -> Table:
    """Write a publication's manifest, then make its commit. Return the table after it.

    `head_only` is that of a TableChange. Raise Conflict when another commit to main was faster.
    """
    path = layout.publication_path(publication.topic, publication.number, publication.attempt)
    context.storage.create(path, encode(publication))
    context.progress("publication written")
    topic = layout.Topic(context.storage, publication.topic)
    properties = properties_of(publication, path)
    made_by = {RUN_ID: publication.run_id, "millrace.attempt": publication.attempt}
    change = TableChange(
        added=added,
        removed=removed,
        schema=missing_columns(topic, table, publication.schema),
        layout=_layout_change(topic, table, publication.schema, layouts),
        properties=properties,
        summary=properties | made_by,
        head_only=head_only,
    )
    committed = commit(table, change)
    context.progress("committed")
    return committed


def _layout_change(topic: layout.Topic, table: Table, schema: int, layouts: TableLayouts) -> LayoutChange:
    """Return the specs and orders that the table lacks. They become its defaults with a new layout only.

    Between two layouts, the default sort order may be another program's.
    """
    before = table.properties.get(SCHEMA)  # None before the first publication: then it has hours alone
    had = read_schema(topic, int(before)).layout if before else NO_LAYOUT
    if had == read_schema(topic, schema).layout:
        return LayoutChange(specs=layouts.new_specs, orders=layouts.new_orders)
    ids = layouts.ids(schema)
    return LayoutChange(
        specs=layouts.new_specs, orders=layouts.new_orders, spec_id=ids.spec_id, order_id=ids.order_id
    )
