"""The command line that decodes small captures as it does large ones, in a process of its own."""

from __future__ import annotations

import sys

LIMITS = {
    "Spark": "import pipeline.tables.decoding; pipeline.tables.decoding.LOCAL_BYTES = -1",
    "processes": "import pipeline.run.local_processes; pipeline.run.local_processes.PROCESS_BYTES = 1",
}
MAIN = """
if __name__ == "__main__":
    {limit}
    import sys
    from jobs.cli import main
    sys.exit(main())
"""


def decode_with(means: str, *arguments: str) -> list[str]:
    """`wirehare decode` of local captures with 'Spark', or in several local 'processes'."""
    return [sys.executable, "-c", MAIN.format(limit=LIMITS[means]), "decode", *arguments]
