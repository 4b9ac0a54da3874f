"""Tables and columns with the names of the field: checkpoint, partition ends, rejected record, final."""

from alembic import op

revision = "0006"
down_revision = "0005"

TABLES = {
    "beats": "checkpoints",
    "marks": "partition_ends",
    "strangers": "rejected_records",
    "unheard": "lost_reports",
}
COLUMNS = {
    "coverage": {"began": "counted_since"},
    "load_part": {"told": "applied_at"},
    "loads": {"retold": "recounted_parts"},
    "tiers": {
        "beaten_turn": "heartbeat_turn",
        "beaten_number": "heartbeat_number",
        "unmarked": "changed_topics",
        "heard_through": "applied_through",
    },
    "windows": {
        "settled": "is_final",
        "last_settled": "last_final",
        "dirty": "is_changed",
        "signature": "facts_digest",
        "touched": "changed_at",
    },
}


def upgrade() -> None:
    """Rename them; indexes keep their names."""
    for old, new in TABLES.items():
        op.rename_table(old, new)
    for table, names in COLUMNS.items():
        for old, new in names.items():
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
