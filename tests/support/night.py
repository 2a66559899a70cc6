"""Odd captures of the night that all tests share (`audited`): texts that are not UTF-8, damaged logins, clocks that
stood still or ran backwards, and TLS."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import odd_texts
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from golden import CAPTURES
from logins import Login, conversation, copies_nothing, damaged, logins
from pcap_files import records
from test_text import INVALID
from wire import CLIENT_IP, FIRST_CLIENT_PORT, Wire, write_capture

SAMPLES = Path(__file__).parents[2] / "samples"
ENCRYPTED, KEY_LOG = "091_tls13_dsb.pcapng", CAPTURES / "091_tls13.keylog.txt"
WIRES = "wires.pcap"  # the capture of odd texts and damaged logins
STARTS = (0, 8)  # of the texts in each conversation that is not UTF-8
OF_EACH = 6  # ways to damage each frame that bears a secret
ODD = [data for data, _ in INVALID.values()]
ODD_WIRES = len(odd_texts.VERSIONS) * len(STARTS)
# Of connections: which of them are those of `odd_wires`.
IS_ODD = f"client_ip = '{CLIENT_IP}' AND client_port - {FIRST_CLIENT_PORT} BETWEEN 0 AND {ODD_WIRES - 1}"
# Samples with other times, in us: of packet 0, 1, 2 ...
RETIMED: dict[str, Callable[[int], int]] = {
    "091_confirms_and_return.pcap": lambda number: 1_700_000_000_000_000,
    "091_declare_publish_consume_ack.pcap": lambda number: 1_710_000_000_000_000 - 1000 * number,
}
NAMES = (WIRES, *RETIMED, ENCRYPTED)


def one_after_the_other(start: int = 0) -> Any:
    turn = itertools.cycle(ODD[start:] + ODD[:start])
    return lambda: next(turn)


def odd_wires() -> list[Wire]:
    """Conversations in which no text is UTF-8."""
    return [
        odd_texts.wire_of(version, one_after_the_other(start)) for version in odd_texts.VERSIONS for start in STARTS
    ]


def connections() -> Iterator[tuple[Login, int, bytes]]:
    """A login, which of its frames is damaged, and what it becomes."""
    rng = random.Random(0)
    for login in logins():
        for index in login.secret_frames:
            sound = login.frames[index][1]
            ways = list(damaged(login, index, rng, b"", 20))
            rng.shuffle(ways)
            telling = (data for data in ways if copies_nothing(login, sound, b"", data))
            yield from ((login, index, data) for data in islice(telling, OF_EACH))


def rewritten(sample: str, clock: Callable[[int], int]) -> bytes:
    """A sample with other times."""
    header, packets = records(SAMPLES / sample)
    times = (struct.pack("<II", *divmod(clock(number), 10**6)) for number in range(len(packets)))
    return header + b"".join(time + packet[8:] for time, packet in zip(times, packets, strict=True))


def write_captures(folder: Path) -> None:
    """Write the odd captures of the night into `folder`."""
    write_capture(folder / WIRES, [*odd_wires(), *(conversation(*connection) for connection in connections())])
    for sample, clock in RETIMED.items():
        (folder / sample).write_bytes(rewritten(sample, clock))
    (folder / ENCRYPTED).write_bytes((CAPTURES / ENCRYPTED).read_bytes())


@cache
def odd_connections(folder: Path) -> pa.Array:
    """Connections of these captures, of which some frame was captured, where `folder` is that of the night."""
    files = pa.array([(folder / "captures" / name).as_uri() for name in NAMES])
    frames = pq.read_table(folder / "tables" / "frames", columns=["connection_id", "capture_file"])
    return pc.unique(frames.filter(pc.is_in(frames["capture_file"], files))["connection_id"])


def of_odd(rows: pa.Table, folder: Path) -> pa.Table:
    """The rows of a table that are about these connections, or about none."""
    if "connection_id" not in rows.column_names:
        return rows
    return rows.filter(pc.is_in(rows["connection_id"], odd_connections(folder)))
