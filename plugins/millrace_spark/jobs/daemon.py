"""The parent of Spark's Python workers on the driver's machine: the installed `pyspark.daemon`.

Spark puts a zip of the same PySpark first on the path, and every worker would compile its imports from that
zip again: half a second of CPU.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Start workers until Spark closes standard input."""
    given, home = list(sys.path), os.environ["SPARK_HOME"]
    sys.path[:] = [path for path in given if not path.startswith(f"{home}/python/lib/")]
    installed = find_spec("pyspark")
    if installed is None or not Path(installed.origin or "").is_relative_to(home):
        sys.path[:] = given  # another Python was named for the tasks, with another PySpark or none
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
