"""Operators' decisions in one table. Before, acceptances were columns of producers and in no audit topic.

They stay in force. They have no records yet, so the auditor writes the records when it starts.
"""

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NOTHING, _FOR_EVER = -(2**63), 2**63 - 1
_WHO = "an earlier version"


def upgrade() -> None:
    """Create the table, and fill it from the acceptances of revision 0002."""
    _create()
    find = sa.text
    producers = find("SELECT instance, accepted, disowned FROM producers WHERE accepted IS NOT NULL")
    rejected = find(
        "SELECT a.time, a.topic, a.load, a.edition, a.who, a.reason, l.sha256 FROM acceptance a JOIN loads l"
        " ON l.topic = a.topic AND l.load = a.load AND l.edition = a.edition ORDER BY a.number"
    )
    connection, now = op.get_bind(), time.time_ns() // 1_000_000
    found = {(row.instance, bool(row.disowned)): row.accepted for row in connection.execute(producers).all()}
    decisions = [
        _decision("disown" if disowned else "accept", time=now, reason=reason, instance=instance)
        for (instance, disowned), reason in found.items()
    ]
    decisions += [_decision("accept-rejected", **row._mapping) for row in connection.execute(rejected).all()]
    if decisions:
        op.bulk_insert(sa.table("decision", *map(sa.column, decisions[0])), decisions)
    op.drop_table("acceptance")
    op.drop_column("producers", "accepted")
    op.drop_column("producers", "disowned")
    first = sa.Column("first_at", sa.BigInteger, nullable=False, server_default=sa.text(str(_NOTHING)))
    op.add_column("producers", first)
    op.execute("UPDATE producers SET first_at = heard_at")  # its first hello was not later


def _decision(kind: str, **values: object) -> dict[str, object]:
    return {
        "id": secrets.token_hex(16),
        "kind": kind,
        "written": _NOTHING,
        "applied": time.time_ns() // 1_000_000,
        "who": _WHO,
        "instance": None,
        "service": None,
        "server": None,
        "before": _FOR_EVER,
        "topic": None,
        "load": 0,
        "edition": 0,
        "sha256": "",
        **values,
    }


def _create() -> None:
    number, text = sa.BigInteger, sa.Text
    op.create_table(
        "decision",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        *(sa.Column(name, number, nullable=False) for name in ("time", "written", "applied")),
        *(sa.Column(name, text, nullable=False) for name in ("who", "reason")),
        sa.Column("instance", number, nullable=True, index=True),
        sa.Column("service", text, nullable=True, index=True),
        sa.Column("server", text, nullable=True),
        sa.Column("before", number, nullable=False),
        sa.Column("topic", sa.String(249), nullable=True, index=True),
        *(sa.Column(name, number, nullable=False) for name in ("load", "edition")),
        sa.Column("sha256", sa.String(64), nullable=False),
    )
