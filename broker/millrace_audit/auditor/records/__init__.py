"""Application of audit records to the database: what producers, readers and operators have said."""
