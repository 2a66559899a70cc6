"""`spark-submit` on this machine, as with an installed package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark

from pipeline.run.session import COLLECTOR, QUICK_COMPILER, class_archive_options

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(pyspark.__file__).parent
# Lines of Spark before one of Python runs, and of the level that is then set.
OF_SPARK = re.compile(r"WARNING: Using incubator|Using Spark's|\d\d/\d\d/\d\d |Setting Spark log level")
# As a session of ours starts its JVM for small captures: half the processor time.
BRIEFLY = " ".join((class_archive_options(), COLLECTOR, QUICK_COMPILER))


def submitted(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Output and exit status of `spark-submit WORDS` in a folder. Spark redirects stderr of Python to stdout."""
    environment = os.environ | {
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),  # as an installed package would be found
        "SPARK_SUBMIT_OPTS": BRIEFLY,
    }
    command = [str(HOME / "bin/spark-submit"), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
