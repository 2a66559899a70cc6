"""Texts that are coded as words of a dictionary mean what plain ones do, and batches that wait keep their order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from codec.tables import STRING, table_of
from udfs.arrow.arrays import is_in
from udfs.arrow.spill_files import Spool
from udfs.sink.parquet import ParquetFiles

PLAIN = pa.array(["body", None, "method", "header", "body"])
SCHEMA = table_of("rows", ("name", STRING))


def coded(words: list[str], codes: list[int | None]) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words))
    return pa.RecordBatch.from_arrays([column], names=["name"])


@pytest.mark.parametrize("column", [PLAIN, PLAIN.dictionary_encode(), pa.chunked_array([PLAIN.dictionary_encode()])])
def test_null_matches_no_text(column: pa.Array) -> None:
    assert is_in(column, "body", "gap").tolist() == [True, False, False, False, True]
    assert is_in(column).tolist() == [False] * 5


def test_a_row_group_has_only_the_dictionary_entries_that_occur(tmp_path: Path) -> None:
    files = ParquetFiles(fs.LocalFileSystem(), str(tmp_path), SCHEMA)
    files.write(coded(["a", "b", "c", "d"], [3, None, 1]))
    files.write(coded(["e", "d"], [1, 0, None]))  # coded in another way
    name, rows = files.close()
    file = pq.ParquetFile(tmp_path / name, read_dictionary=["name"])
    column = file.read()["name"].combine_chunks()
    assert rows == 6
    assert file.num_row_groups == 1
    assert sorted(column.dictionary.to_pylist()) == ["b", "d", "e"]
    assert column.to_pylist() == ["d", None, "b", "d", "e", None]


@pytest.mark.parametrize("most", [0, 20, 1 << 20])
def test_spilled_batches_come_back_in_order(most: int) -> None:
    spool = Spool(most)
    for number in range(5):
        spool.add(pa.RecordBatch.from_pydict({"number": [number]}))
    assert [batch["number"][0].as_py() for batch in spool.drain()] == [0, 1, 2, 3, 4]
    assert list(spool.drain()) == []
