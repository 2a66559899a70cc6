"""Make the JVM's class archive: `python -m pipeline.class_archive samples`.

Decodes and audits the given captures while the JVM records the loaded classes, and writes the archive
(`pipeline.run.session.CLASS_ARCHIVE`, 190 MB) that speeds up later starts. It takes a minute, once per installation;
`make kernels` does it. Measured on the captures in samples/: 6.7 instead of 9.9 CPU seconds to start the session, 51
instead of 61 until all tables are written.
"""

from __future__ import annotations

import sys
import tempfile

import pipeline
from codec.compiler.kernel import all_compiled, interpret
from pipeline.output import parquet_tables as parquet
from pipeline.run.session import (
    CLASS_ARCHIVE,
    INTERPRETED,
    LOGGING,
    QUIET,
    session,
    settings,
)


def make(captures: list[str]) -> None:
    """Decode and audit `captures` as jobs do, and write the loaded classes to CLASS_ARCHIVE. Takes a minute."""
    if not all_compiled():  # each worker would compile them, beside the process that does
        interpret()
    CLASS_ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    CLASS_ARCHIVE.unlink(missing_ok=True)
    options = f'{LOGGING} "-XX:ArchiveClassesAtExit={CLASS_ARCHIVE}" {QUIET}'
    spark = session(**{"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as directory, settings(spark, INTERPRETED):
        pipeline.write(spark, captures, f"{directory}/tables")
        tables = pipeline.decode(spark, captures)
        for name, table in tables.items():
            parquet.write(table, f"{directory}/{name}")
        pipeline.findings(pipeline.load(spark, directory)).collect()
    spark.stop()  # the JVM writes the archive when it exits, with this process


if __name__ == "__main__":
    make(sys.argv[1:])
