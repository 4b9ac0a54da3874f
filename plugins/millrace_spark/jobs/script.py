"""The script that spark-submit runs: `entry.main`, with the PySpark that is installed.

    script.py VERB FILE [FILE]   the first FILE has the verb as JSON; both are deleted once read
    script.py VERB               the environment has the verb: see elsewhere.py

Spark puts a zip of the same PySpark first on the path, and Python compiles imports from a zip again each
time: half a second of CPU before the job can begin.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    zips = f"{os.environ['SPARK_HOME']}/python/lib/"
    sys.path[:] = [path for path in sys.path if not path.startswith(zips)]
    from millrace_spark.jobs.entry import main

    main()
