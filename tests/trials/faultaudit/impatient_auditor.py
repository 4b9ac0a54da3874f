"""Process of an auditor that waits only some seconds for a published table that is gone.

`python -m tests.trials.faultaudit.impatient_auditor SECONDS auditor …`: end with the options of
`millrace auditor`.
"""

from __future__ import annotations

import sys

from millrace.cli import main
from millrace_audit.auditor.judging import load_facts

if __name__ == "__main__":
    load_facts.TABLE_PATIENCE_MS = int(sys.argv.pop(1)) * 1000
    main()
