"""An application that tells, one line for each executor, which Python its workers are and where their code is from."""

import json
import os
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.run.session import session


def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import codec
    import udfs

    for _ in batches:
        found = {
            "folder": os.getcwd(), "python": sys.executable, "prefix": sys.prefix, "path": sys.path,
            "code": [codec.__file__, udfs.__file__, pa.__file__],
        }  # fmt: skip
        yield pa.record_batch({"found": [json.dumps(found)]})


spark = session("where")
rows = spark.range(8, numPartitions=8).mapInArrow(look, "found string").collect()
for line in sorted({row.found for row in rows}):
    print(line)
spark.stop()
