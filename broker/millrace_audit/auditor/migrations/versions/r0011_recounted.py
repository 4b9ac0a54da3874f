"""The log position after which the offsets of a log that was cut back are counted again."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column: the offsets noted so far were never counted."""
    never = sa.text(str(2**63 - 1))
    column = sa.Column("recounted_after", sa.BigInteger, nullable=False, server_default=never)
    op.add_column("uncounted", column)
