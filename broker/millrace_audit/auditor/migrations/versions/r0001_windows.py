"""The tables before migrations: those of every database that has no revision and no leases."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: a database without tables is created whole, as the newest revision."""
