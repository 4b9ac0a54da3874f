"""Incidents. Windows that are not complete are judged once more, which finds their causes."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the tables. Windows whose final verdict is incomplete keep it until they are judged again."""
    op.create_table(
        "incidents",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("first_seen", sa.BigInteger, nullable=False),
        sa.Column("resolved", sa.BigInteger),
        sa.Column("first_hour", sa.BigInteger, nullable=False),
        sa.Column("last_hour", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.JSON, nullable=False) for name in ("topics", "services", "servers")),
        *(_text(name) for name in ("title", "command", "acknowledged_by", "note")),
    )
    op.create_table(
        "incident_windows",
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("window", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("incident", sa.BigInteger, primary_key=True, autoincrement=False),
        _text("title"),
        _text("command"),
    )
    op.create_index("windows_of_incident", "incident_windows", ["incident", "window"])
    windows = sa.table("windows", *map(sa.column, ("verdict", "settled", "dirty")))
    doubtful = windows.c.verdict.not_in(["complete", "carried"])
    op.execute(windows.update().where(doubtful).values(settled=sa.false(), dirty=sa.true()))


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)
