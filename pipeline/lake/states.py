"""States of open connections, moved from some files into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.files import rows_of
from pipeline.lake.layout import STATES, LakeFile
from pipeline.output.swap import Place
from udfs.source.lake_states import OCTETS, StateFiles

READ_ROWS = 256  # states at a time
BESIDE = [name for name in STATES.names if name != OCTETS]


def in_flow_order(root: Place, files: Sequence[LakeFile], gone: pa.Array) -> Iterator[pa.RecordBatch]:
    """The states in these files but for those of connections that are `gone`, in the order of flows, as tasks read them
    (`udfs.source.lake_states`)."""
    rows = rows_of(root, "states", files, BESIDE)
    if not rows.num_columns:
        return
    rows = rows.filter(pc.invert(pc.is_in(rows["connection_id"], gone))).sort_by("flow").combine_chunks()
    states = StateFiles(root.files, tuple(f"{root.path}/states/{file.path}" for file in files)).open()
    for batch in rows.to_batches(max_chunksize=READ_ROWS):
        octets = [states[flow] for flow in batch["flow"].to_pylist()]
        yield batch.append_column(OCTETS, pa.array(octets, pa.binary()))
