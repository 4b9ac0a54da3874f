"""From loads to the published table: publications, compaction, expiry."""
