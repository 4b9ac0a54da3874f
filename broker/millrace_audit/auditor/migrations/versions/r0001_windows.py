"""Tables before migrations, of every database without a revision and without leases."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: a database without tables is created whole, as the newest revision."""
