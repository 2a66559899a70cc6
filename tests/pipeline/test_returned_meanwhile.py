"""A message comes back while an earlier one of the connection is not complete yet."""

from __future__ import annotations

from pathlib import Path

import classic_frames as classic
import pyarrow.parquet as pq
from rule_support import Case, Connection, write_cases

import pipeline
from pipeline.run.local_processes import LocalProcesses


def test_a_return_before_the_body_of_a_publish(tmp_path: Path) -> None:
    """The capture ends after the content header of the publish, whose three bytes of body are not there."""
    connection = (
        Connection("0-9-1").handshake().open(1).client("basic.publish", exchange="e", routing_key="k", mandatory=True)
    )
    connection.client_bytes(classic.header("0-9-1", "basic", 3, 1))
    connection.server("basic.return", reply_code=312, reply_text="NO_ROUTE", exchange="e", routing_key="k").content(
        b"abc"
    )
    write_cases(tmp_path / "returned.pcap", [Case("", "0-9-1", connection, [])])
    pipeline.write(LocalProcesses(), str(tmp_path / "returned.pcap"), str(tmp_path / "tables"))
    rows = pq.read_table(tmp_path / "tables" / "messages").to_pylist()
    found = sorted((row["operation"], row["complete"], row["outcome"]) for row in rows)
    # It may be another publish, of another body, that came back.
    assert found == [("publish", False, "unknown"), ("return", True, "presettled")]
