"""Class archive: the JVM's classes in their memory layout, so that Spark starts without parsing 20,000 of them.

`python -m pipeline.warm samples` makes it (190 MB) once after the installation, in this Python environment.
`pipeline.session` uses it when it starts the JVM. The JVM maps it only if its own version and the jars on its class
path match the archive; otherwise it starts as usual. Measured on the captures in samples/: 6.7 instead of 9.9 CPU
seconds to start the session, 51 instead of 61 until all tables are written.

Source: Java 17 documentation of the `java` command, option -XX:ArchiveClassesAtExit (class data sharing).
"""

from __future__ import annotations

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "share" / "wirehare" / "spark-classes.jsa"
# No log lines about an archive that does not match, or classes that cannot be archived; only errors.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def options() -> str:
    """JVM options that use the archive; empty when there is none."""
    return f'"-XX:SharedArchiveFile={ARCHIVE}" {QUIET}' if ARCHIVE.is_file() else ""
