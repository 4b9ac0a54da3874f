"""The newest turn of the warehouse's reader whose numbers have no holes; a hole is a lost record."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column: the numbers of all turns so far may have holes."""
    none = sa.text("-1")
    op.add_column("tiers", sa.Column("numbered_turn", sa.BigInteger, nullable=False, server_default=none))
