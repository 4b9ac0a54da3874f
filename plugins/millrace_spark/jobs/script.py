"""The script that spark-submit runs: `entry.main`, with the installed PySpark.

    script.py NAME FILE [FILE]   the first FILE has the request as JSON; both are deleted once read
    script.py NAME               the environment has the request: see standalone.py

Spark puts a zip of the same PySpark first on the path, and Python compiles imports from a zip again each
time: half a second of CPU before the job can begin.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.sort(key=lambda path: path.endswith(".zip"))
    from millrace_spark.jobs.entry import main

    main()
