"""Number of events of each window, and of the wrong events of each window of an incident."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_OF_JUDGED = {
    "sqlite": "json_extract(judged, '$.acknowledged') + coalesce(json_extract(judged, '$.carried'), 0)",
    "postgresql": "(judged->>'acknowledged')::bigint + coalesce((judged->>'carried')::bigint, 0)",
}


def upgrade() -> None:
    """Add the columns. Windows of incidents are judged once more, which counts their wrong events."""
    none = sa.text("0")
    for table in ("windows", "incident_windows"):
        op.add_column(table, sa.Column("events", sa.BigInteger, nullable=False, server_default=none))
    events = _OF_JUDGED[op.get_bind().dialect.name]
    # A window without a verdict has JSON's null, or none.
    op.execute(f"UPDATE windows SET events = {events} WHERE {events} IS NOT NULL")
    op.execute(
        "UPDATE windows SET is_final = false, is_changed = true WHERE EXISTS (SELECT 1 FROM incident_windows"
        " WHERE incident_windows.topic = windows.topic AND incident_windows.window = windows.window)"
    )
    op.drop_index("hours", "windows")
    op.create_index("hours", "windows", ["topic", "window", "verdict", "is_changed", "events"])
