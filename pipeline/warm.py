"""Make the JVM's class archive: `python -m pipeline.warm samples`.

Decodes and audits the given captures while the JVM records the loaded classes, and writes the archive
(`pipeline.class_archive`) that speeds up later starts. It takes a minute, once per installation; `make kernels` does
it.
"""

from __future__ import annotations

import sys
import tempfile

import pipeline
from pipeline.class_archive import ARCHIVE, QUIET
from pipeline.output import parquet
from pipeline.session import INTERPRETED, LOGGING, session, settings


def make(captures: list[str]) -> None:
    """Decode and audit `captures` as jobs do, and write the loaded classes to ARCHIVE. Takes a minute."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    taking_notes = f'{LOGGING} "-XX:ArchiveClassesAtExit={ARCHIVE}" {QUIET}'
    spark = session(**{"spark.driver.extraJavaOptions": taking_notes})
    with tempfile.TemporaryDirectory() as directory, settings(spark, INTERPRETED):
        pipeline.write(spark, captures, f"{directory}/tables")
        tables = pipeline.decode(spark, captures)
        for name, table in tables.items():
            parquet.write(table, f"{directory}/{name}")
        pipeline.findings(pipeline.load(spark, directory)).collect()
    spark.stop()  # the JVM writes the archive when it exits, with this process


if __name__ == "__main__":
    make(sys.argv[1:])
