"""The time through which branch `live` of a topic's table shows the rows of the warehouse."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column: no reader has reported the time so far."""
    op.add_column("warehouse_state", sa.Column("live_through", sa.BigInteger, nullable=True))
