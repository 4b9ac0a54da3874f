"""Rows without a header whose files were deleted before they were counted."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column: no reader has reported such rows so far."""
    op.add_column("load_hour", sa.Column("uncounted", sa.BigInteger, nullable=False, server_default="0"))
