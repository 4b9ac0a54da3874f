"""Leases, loads by hour, rejected messages, states of the warehouse, decisions of operators.

A load of revision 0001 reported no hours and no rows without a header, so these are unknown. Its positions
have no leader epochs, and its producers hold no window open until they report again.
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_FOR_EVER = 2**63 - 1


def upgrade() -> None:
    """Add columns with the values that are true of the rows of revision 0001, then the tables."""
    _add("audit_positions", "epoch", -1)
    _add("audit_positions", "shift", 0)
    _add("coverage", "unplaced", _FOR_EVER)
    _add("loads", "whole", sa.false())
    _add("loads", "retold", 0)
    _add("producers", "held_open", 0)
    _add("topics", "unkeyed_from", time.time_ns() // 1_000_000)
    op.drop_index("open_windows", "windows")
    op.create_index("open_by_time", "windows", ["settled", "topic", "window"])
    op.create_table("database", sa.Column("name", sa.String(32), primary_key=True))
    op.create_table(
        "lease",
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("process", sa.String(255), nullable=False),
        _number("renewals"),
    )
    op.create_table("held_open", _key("producer"), _key("window"), _topic_key())
    op.create_table("changed", _topic_key(), _key("hour"), _number("number", index=True))
    op.create_table(
        "acceptance",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        _number("time"),
        sa.Column("topic", sa.String(249), nullable=False, index=True),
        _number("load"),
        _number("edition"),
        _text("who"),
        _text("reason"),
    )
    op.create_table(
        "load_part",
        _topic_key(),
        _key("load"),
        _key("edition"),
        sa.Column("sha256", sa.String(64), primary_key=True),
        _key("part"),
        sa.Column("waits", sa.Boolean, nullable=False),
        _number("told"),
        _number("serial"),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "load_hour",
        _topic_key(),
        _key("hour"),
        _key("load"),
        _key("edition"),
        _number("rows"),
        _number("rejected"),
        _number("erased"),
    )
    op.create_index("hours_of_load", "load_hour", ["topic", "load"])
    op.create_table(
        "rejected",
        _topic_key(),
        _key("load"),
        _key("edition"),
        _key("window"),
        _key("last"),
        sa.Column("is_span", sa.Boolean, nullable=False),
        _number("messages"),
        _number("keyed"),
        _text("reason"),
    )
    op.create_index("rejected_of_window", "rejected", ["topic", "window"])
    op.create_index("rejected_spans", "rejected", ["is_span", "topic"])
    op.create_table(
        "warehouse_state",
        _topic_key(),
        _number("newest_load"),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("editions_sha256", sa.String(64), nullable=False),
        _text("table_trouble"),
        _number("table_gone_since"),
        sa.Column("is_table_doubted", sa.Boolean, nullable=False),
        _number("lost_from"),
        sa.Column("other_editions", sa.JSON, nullable=False),
    )


def _add(table: str, name: str, value: int | sa.False_) -> None:
    kind = sa.BigInteger if isinstance(value, int) else sa.Boolean
    default = sa.text(str(value)) if isinstance(value, int) else value
    op.add_column(table, sa.Column(name, kind, nullable=False, server_default=default))


def _key(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)


def _topic_key() -> sa.Column[str]:
    return sa.Column("topic", sa.String(249), primary_key=True)


def _number(name: str, *, index: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, index=index)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)
