"""The verbs of the audit, a file each: `auditor`, `audit-reader` and `agent` run it, `audit` asks it."""
