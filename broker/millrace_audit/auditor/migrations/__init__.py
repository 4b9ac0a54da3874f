"""Revisions of the auditor's database: each file of `versions/` changes the tables of the revision before.

A change of a table in `store` needs a new file there. No revision can be undone: an older Millrace needs an
empty database, which the audit topics fill again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.autogenerate import produce_migrations
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect

from millrace.errors import MillraceError

logger = logging.getLogger("millrace.audit.auditor")

VERSION_TABLE = "auditor_revision"
_WITHOUT_REVISION = {"held_open": "0002", "windows": "0001"}
"""Table -> revision of a database that has this table and states no revision; the first match counts."""
_EMPTY_ONE = "give --database-url of an empty one, which the audit topics fill again"


def migrate(connection: Connection, tables: MetaData, before: Callable[[Connection], object]) -> None:
    """Create the tables in an empty database, or upgrade the tables of an older revision to the newest.

    `before` is called before tables change. Raise MillraceError if the tables are those of a newer Millrace,
    or of no revision at all.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    known = [each.revision for each in script.walk_revisions()]
    options = {
        "version_table": VERSION_TABLE,
        "include_name": lambda name, kind, _: kind != "table" or name in tables.tables,
    }
    context = MigrationContext.configure(connection, opts=options)
    there = tables.tables.keys() & set(inspect(connection).get_table_names())
    revision = context.get_current_revision()
    if not there:
        tables.create_all(connection)
        context.stamp(script, "head")
        return
    if revision is None:
        revision = next((first for table, first in _WITHOUT_REVISION.items() if table in there), "0001")
        context.stamp(script, revision)
    if revision not in known:
        raise MillraceError(
            f"the auditor's database is of a newer Millrace, of revision {revision}; this one knows"
            f" {known[0]}: start the newer one, or {_EMPTY_ONE}"
        )
    if revision != known[0]:
        before(connection)
        command.upgrade(config, "head")
        logger.info("the auditor's database is changed from revision %s to %s", revision, known[0])
    changes = produce_migrations(context, tables).upgrade_ops
    if changes is not None and changes.ops:
        raise MillraceError(
            "the auditor's database is of another version of Millrace (its table"
            f" {getattr(changes.ops[0], 'table_name', '?')} differs): {_EMPTY_ONE}"
        )
