"""Class archive: the JVM's classes as it lays them out in memory, so that Spark starts without parsing 20,000 of them.

`python -m pipeline.warm samples` makes it, once after the installation, and leaves it (190 MB) in the environment that
this Python runs in. `pipeline.session` uses it when it starts the JVM. The JVM maps it only when its own version and
the jars on its class path are those of the archive; otherwise, and without an archive, it starts as usual. Measured on
the captures in samples/: 6.7 instead of 9.9 CPU seconds until the session stands, 51 instead of 61 until all is
written.

Source: Java 17 documentation of the `java` command, option -XX:ArchiveClassesAtExit (class data sharing).
"""

from __future__ import annotations

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "share" / "wirehare" / "spark-classes.jsa"
# An archive that does not fit, or classes that cannot go into one, are no news to anyone; errors still are.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def options() -> str:
    """JVM options that use the archive; empty when there is none."""
    return f'"-XX:SharedArchiveFile={ARCHIVE}" {QUIET}' if ARCHIVE.is_file() else ""
