"""The time at which offsets were noted that will never be counted."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column: of offsets noted so far the time is unknown."""
    unknown = sa.text(str(-(2**63)))
    op.add_column("uncounted", sa.Column("noted", sa.BigInteger, nullable=False, server_default=unknown))
