"""One night over odd captures: texts that are not UTF-8, damaged logins, clocks that stood still or ran backwards, and
TLS. Several test files look at its output."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import odd_texts
from golden import CAPTURES
from logins import Login, conversation, copies_nothing, damaged, logins
from test_text import INVALID
from wire import FIRST_CLIENT_PORT, Wire, write_capture

from jobs.cli import main

SAMPLES = Path(__file__).parents[2] / "samples"
KEY_LOG = CAPTURES / "091_tls13.keylog.txt"
WIRES = "wires.pcap"  # the capture of odd texts and damaged logins
STARTS = (0, 8)  # of the texts in each conversation that is not UTF-8
OF_EACH = 6  # ways to damage each frame that bears a secret
ODD = [octets for octets, _ in INVALID.values()]
ODD_WIRES = len(odd_texts.VERSIONS) * len(STARTS)
# Of connections: which of them are those of `odd_wires`.
IS_ODD = f"client_port BETWEEN {FIRST_CLIENT_PORT} AND {FIRST_CLIENT_PORT + ODD_WIRES - 1}"
# Samples with other times, in us: of packet 0, 1, 2 ...
RETIMED: dict[str, Callable[[int], int]] = {
    "091_confirms_and_return.pcap": lambda number: 1_700_000_000_000_000,
    "091_declare_publish_consume_ack.pcap": lambda number: 1_710_000_000_000_000 - 1000 * number,
}


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
        for place in login.secret_frames:
            sound = login.frames[place][1]
            ways = list(damaged(login, place, rng, b"", 20))
            rng.shuffle(ways)
            telling = (octets for octets in ways if copies_nothing(login, sound, b"", octets))
            yield from ((login, place, octets) for octets in islice(telling, OF_EACH))


def rewritten(sample: str, clock: Callable[[int], int]) -> bytes:
    """A sample with other times."""
    octets = bytearray((SAMPLES / sample).read_bytes())
    at, number = 24, 0
    while at < len(octets):
        struct.pack_into("<II", octets, at, *divmod(clock(number), 10**6))
        at += 16 + struct.unpack_from("<I", octets, at + 8)[0]
        number += 1
    return bytes(octets)


def night(folder: Path) -> None:
    """Write into `folder` the `captures`, their `tables`, `audit.html`, `audit.json`, and what was `printed`."""
    captures = folder / "captures"
    captures.mkdir()
    write_capture(captures / WIRES, [*odd_wires(), *(conversation(*connection) for connection in connections())])
    for sample, clock in RETIMED.items():
        (captures / sample).write_bytes(rewritten(sample, clock))
    encrypted = "091_tls13_dsb.pcapng"
    (captures / encrypted).write_bytes((CAPTURES / encrypted).read_bytes())
    written = {"--output": "tables", "--report": "audit.html", "--json": "audit.json"}
    places = [word for option, name in written.items() for word in (option, str(folder / name))]
    options = ["--payload", "--keylog", str(KEY_LOG), "--format", "sarif", "--fail-on", "never"]
    with (folder / "printed").open("w") as printed, redirect_stdout(printed), redirect_stderr(printed):
        assert main(["nightly", str(captures), *places, *options]) == 0
