"""Index of the windows by verdict that answers without reading the windows."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the window to the index."""
    op.drop_index("verdicts", "windows")
    op.create_index("verdicts", "windows", ["verdict", "topic", "window"])
