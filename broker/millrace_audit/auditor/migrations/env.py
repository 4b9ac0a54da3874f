"""Run the revisions on the connection that `migrate` gives."""

from alembic import context

from millrace_audit.auditor.migrations import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()
