"""Class archive: the JVM's classes as it lays them out in memory, so that Spark starts without parsing 20,000 of them.

    python -m pipeline.class_archive samples      (once after the installation; `make` does it)

It decodes and audits the given captures while the JVM takes notes, and leaves the archive (190 MB) in the environment
that this Python runs in. `pipeline.session` uses it when it starts the JVM. The JVM maps it only when its own version
and the jars on its class path are those of the archive; otherwise, and without an archive, it starts as usual. Measured
on the captures in samples/: 6.7 instead of 9.9 CPU seconds until the session stands, 51 instead of 61 until all is
written.

Source: Java 17 documentation of the `java` command, option -XX:ArchiveClassesAtExit (class data sharing).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "share" / "wirehare" / "spark-classes.jsa"
# An archive that does not fit, or classes that cannot go into one, are no news to anyone; errors still are.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def options() -> str:
    """JVM options that use the archive; empty when there is none."""
    return f'"-XX:SharedArchiveFile={ARCHIVE}" {QUIET}' if ARCHIVE.is_file() else ""


def make(captures: list[str]) -> None:
    """Decode and audit `captures` as jobs do, and leave the classes that this took in ARCHIVE. A minute."""
    import pipeline
    from pipeline import parquet
    from pipeline.decoding import decode_into
    from pipeline.output import place
    from pipeline.session import INTERPRETED, LOGGING, session, settings

    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    taking_notes = f'{LOGGING} "-XX:ArchiveClassesAtExit={ARCHIVE}" {QUIET}'
    spark = session(**{"spark.driver.extraJavaOptions": taking_notes})
    with tempfile.TemporaryDirectory() as directory, settings(spark, INTERPRETED):
        rows = decode_into(spark, captures, place(f"{directory}/decoded"), pipeline.TABLES).decoded
        for name, table in pipeline.from_decoded(rows).items():
            parquet.write(table, f"{directory}/{name}")
        pipeline.findings(pipeline.load(spark, directory)).collect()
    spark.stop()  # the JVM ends with this process, and writes the archive then
