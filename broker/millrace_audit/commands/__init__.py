"""The commands of the audit, one file each: `auditor` and `audit-reader` run it, `audit` asks it."""
