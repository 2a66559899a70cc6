"""Processes at the ends of connections, in captures written by hand: blocks and options of macOS and of Wireshark (its
wiki, Development/PcapngCustom), the option of the pcapng draft alone, comments of ptcpdump."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import decoding
import duckdb
import local_rows
import numpy as np
import pcap_files
import pieces
import pyarrow as pa
import pytest
from growth import assert_linear
from scapy.utils import RawPcapNgReader

from codec.capture.pcapng import PcapngWalker
from codec.capture.processes import commented
from codec.capture.records import Process
from codec.compiler.limits import LIMITS
from codec.tables import PROCESS
from jobs.terminal.summary import application
from pipeline.report.sections import APPLICATION
from udfs.arrow.types import arrow_type

CAPTURES = Path(__file__).parents[1] / "captures"
OF_VERSIONS = {
    "0-8": "08_amqplib_session.pcap", "0-9": "09_qpid_client.pcap", "0-9-1": "091_confirms_and_return.pcap",
    "0-10": "010_tx.pcap", "1.0": "10_rhea_nosasl.pcap",
}  # fmt: skip
ORDERS = ["<", ">"]
IN, OUT = 1, 2  # epb_flags
COMMENT, FLAGS, PROCESS_ID, DARWIN, EFFECTIVE = 1, 2, 8, 0x8001, 0x8003
SECRET = "wonderland"
Options = Callable[[bool, int], list[tuple[int, bytes]]]  # whether the client sent a packet, its index -> options


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def options(order: str, some: list[tuple[int, bytes]]) -> bytes:
    return b"".join(option(order, *each) for each in some) + bytes(4) if some else b""


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def darwin(order: str, process_id: int, *some: tuple[int, bytes]) -> bytes:
    return block(order, 0x80000001, struct.pack(order + "I", process_id) + options(order, list(some)))


def wireshark(order: str, process_id: int, *some: tuple[int, bytes], kind: int = 3) -> bytes:
    """The entry is little-endian in every section."""
    entry = struct.pack("<I", process_id) + options("<", list(some))
    head = struct.pack(order + "I", 32622) + struct.pack("<II", kind, len(entry))
    return block(order, 0x0BAD, head + entry + bytes(-len(entry) % 4))


def packets(name: str, count: int = 40) -> list[tuple[int, bytes, bool]]:
    """(time in µs, bytes, whether the client sent it) of a capture on Ethernet whose connections have the same ports.
    The client sends the first packet."""
    found: list[tuple[int, bytes, bool]] = []
    client = b""
    for record in pcap_files.records(CAPTURES / name)[1][:count]:
        seconds, fraction, size, _ = struct.unpack_from("<IIII", record)
        data = record[16 : 16 + size]
        client = client or data[34:36]
        found.append((seconds * 10**6 + fraction, data, data[34:36] == client))
    return found


def pcapng(order: str, before: bytes, some: list[tuple[int, bytes, bool]], given: Options) -> bytes:
    """A section with an interface, `before`, and packets with options."""
    found = block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    found += block(order, 1, struct.pack(order + "HHI", 1, 0, 0)) + before
    for at, (us, data, of_client) in enumerate(some):
        head = struct.pack(order + "IIIII", 0, us >> 32, us & 0xFFFFFFFF, len(data), len(data))
        tail = bytes(-len(data) % 4) + options(order, given(of_client, at))
        found += block(order, 6, head + data + tail)
    return found


def connections(path: Path, data: bytes) -> list[dict[str, Any]]:
    path.write_bytes(data)
    rows: list[dict[str, Any]] = local_rows.tables_of_captures([path])["connections"]
    return sorted(rows, key=lambda row: row["opened_ts"])


def sides(row: dict[str, Any]) -> tuple[Process | None, Process | None, Process | None]:
    client, server, local = (
        Process(**row[name]) if row[name] else None for name in ("client_process", "server_process", "local_process")
    )
    return client, server, local


def at_client(*some: tuple[int, bytes], order: str = "<") -> Options:
    """Options of all packets, captured where the client is."""
    return lambda of_client, _: [*some, (FLAGS, struct.pack(order + "I", OUT if of_client else IN))]


PTCPDUMP = [
    (COMMENT, f"PID: 7\nCmd: /usr/bin/python3.11\nArgs: python3 pay.py --password {SECRET}\nPID: 9".encode()),
    (COMMENT, b"ThreadId: 8\nThreadName: worker"),
    (COMMENT, f"ParentPID: 1\nParentCmd: /bin/sh\nParentArgs: sh -c {SECRET}".encode()),
    (
        COMMENT,
        b"ContainerName: pay\nContainerId: 5f0c\nContainerImage: registry.example/pay:1.2\n"
        + f'ContainerLabels: {{"token":"{SECRET}"}}'.encode(),
    ),
    (
        COMMENT,
        b"PodName: pay-5b\nPodNamespace: shop\nPodUID: 0af1\n"
        + f'PodLabels: {{}}\nPodAnnotations: {{"token":"{SECRET}"}}'.encode(),
    ),
]
IN_POD = Process(7, "python3.11", "pay", "5f0c", "registry.example/pay:1.2", "pay-5b", "shop")
NOTATIONS: dict[str, Callable[[str], tuple[bytes, list[tuple[int, bytes]], Process]]] = {
    "macOS": lambda order: (
        darwin(order, 1, (2, b"launchd")) + darwin(order, 501, (2, b"Mail"), (4, bytes(16))),
        [(DARWIN, struct.pack(order + "I", 1)), (EFFECTIVE, struct.pack(order + "I", 0))],
        Process(501, "Mail"),
    ),
    "macOS, the effective one alone": lambda order: (
        darwin(order, 1, (2, b"launchd")), [(EFFECTIVE, struct.pack(order + "I", 0))], Process(1, "launchd"),
    ),
    "Wireshark": lambda order: (
        wireshark(order, 1234, (2, b"curl"), (4, b"curl\0" + SECRET.encode()), (5, struct.pack("<I", 1))),
        [(PROCESS_ID, struct.pack(order + "II", 1234, 1250))],
        Process(1234, "curl"),
    ),
    "Wireshark, a path alone": lambda order: (
        wireshark(order, 1234, (3, b"/opt/my tools/send orders")),
        [(PROCESS_ID, struct.pack(order + "II", 1234, 0))],
        Process(1234, "send orders"),
    ),
    "a process id alone": lambda order: (b"", [(PROCESS_ID, struct.pack(order + "II", 77, 0))], Process(77)),
    "ptcpdump": lambda order: (b"", PTCPDUMP, IN_POD),
    "ptcpdump, between other options": lambda order: (
        b"",
        [(5, bytes(8)), (COMMENT, b"a note"), *PTCPDUMP[:3], (6, bytes(4)), *PTCPDUMP[3:], (COMMENT, b"another")],
        IN_POD,
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_each_notation_in_both_byte_orders(notation: str, order: str, tmp_path: Path) -> None:
    before, some, process = NOTATIONS[notation](order)
    data = pcapng(order, before, packets(OF_VERSIONS["0-9-1"]), at_client(*some, order=order))
    (row,) = connections(tmp_path / "a.pcapng", data)
    assert sides(row) == (process, None, None)


@pytest.mark.parametrize("version", OF_VERSIONS)
def test_each_side_in_every_version(version: str, tmp_path: Path) -> None:
    client, server = (COMMENT, b"PID: 7\nCmd: /bin/client"), (COMMENT, b"PID: 9\nCmd: /bin/server")
    flags = {way: (FLAGS, struct.pack("<I", way)) for way in (IN, OUT)}
    cases: dict[str, tuple[Options, tuple[Process | None, ...]]] = {
        "at the client": (
            lambda sent, _: [client, flags[OUT if sent else IN]], (Process(7, "client"), None, None),
        ),
        "at the server": (
            lambda sent, _: [server, flags[IN if sent else OUT]], (None, Process(9, "server"), None),
        ),
        "loopback, each packet by its sender": (
            lambda sent, _: [client if sent else server, flags[OUT]],
            (Process(7, "client"), Process(9, "server"), None),
        ),
        "loopback, each packet by its receiver": (
            lambda sent, _: [server if sent else client, flags[IN]],
            (Process(7, "client"), Process(9, "server"), None),
        ),
        "without flags, two processes": (
            lambda sent, _: [client if sent else server], (Process(7, "client"), Process(9, "server"), None),
        ),
        "without flags, one direction": (
            lambda sent, _: [server] if not sent else [], (None, Process(9, "server"), None),
        ),
        "without flags, one process": (lambda sent, _: [client], (None, None, Process(7, "client"))),
        "not from the first packet on": (
            lambda sent, at: [client, flags[OUT if sent else IN]] if at > 5 else [], (Process(7, "client"), None, None),
        ),
        "no packet": (lambda sent, _: [], (None, None, None)),
    }  # fmt: skip
    for at, (case, (given, expected)) in enumerate(cases.items()):
        (row,) = connections(tmp_path / f"{at}.pcapng", pcapng("<", b"", packets(OF_VERSIONS[version]), given))
        assert (case, sides(row)) == (case, expected)


def test_scapy_reads_the_same_blocks_of_macos(tmp_path: Path) -> None:
    before, some, _ = NOTATIONS["macOS"]("<")
    path = tmp_path / "a.pcapng"
    connections(path, pcapng("<", before, packets(OF_VERSIONS["1.0"])[:1], at_client(*some)))
    ((_, meta),) = RawPcapNgReader(str(path))
    process = meta.process_information["proc"]  # type: ignore[attr-defined]
    assert (process["id"], process["name"]) == (501, "Mail")


def test_connections_one_after_the_other_on_the_same_ports(tmp_path: Path) -> None:
    some = packets("091_port_reuse.pcap", 200)
    syns = [at for at, (_, data, sent) in enumerate(some) if sent and data[47] & 0x12 == 2]
    assert len(syns) == 2

    def given(sent: bool, at: int) -> list[tuple[int, bytes]]:
        process = b"PID: 7" if at < syns[1] else b"PID: 8"
        return [(COMMENT, process), (FLAGS, struct.pack("<I", OUT if sent else IN))]

    rows = connections(tmp_path / "a.pcapng", pcapng("<", b"", some, given))
    assert [sides(row) for row in rows] == [(Process(7), None, None), (Process(8), None, None)]


def test_a_process_id_that_begins_anew_is_another_process(tmp_path: Path) -> None:
    some = packets(OF_VERSIONS["0-9-1"])
    first_ns, last_ns = some[0][0] * 1000, some[-1][0] * 1000

    def found(*blocks: tuple[bytes, int | None]) -> str | None:
        before = b"".join(
            wireshark("<", 500, (2, name), *([(9, struct.pack("<Q", ns))] if ns else [])) for name, ns in blocks
        )
        given = at_client((PROCESS_ID, struct.pack("<II", 500, 0)))
        (row,) = connections(tmp_path / "a.pcapng", pcapng("<", before, some, given))
        client, *_ = sides(row)
        return client.name if client else None

    assert found((b"first", first_ns - 10), (b"second", last_ns + 10)) == "first"
    assert found((b"second", first_ns), (b"first", first_ns - 10)) == "second"
    assert found((b"later", last_ns + 10), (b"latest", last_ns + 20)) == "later"  # none had begun: the earliest
    assert found((b"old", None), (b"new", None)) == "new"
    assert found((b"old", None), (b"started", first_ns - 1)) == "started"


def test_indexes_and_process_ids_are_those_of_their_section(tmp_path: Path) -> None:
    some = packets("091_port_reuse.pcap", 200)
    at = next(at for at, (_, data, sent) in enumerate(some) if at and sent and data[47] & 0x12 == 2)
    first = pcapng(">", darwin(">", 7, (2, b"first")), some[:at], at_client((DARWIN, bytes(4)), order=">"))
    second = pcapng("<", darwin("<", 8, (2, b"second")), some[at:], at_client((DARWIN, bytes(4))))
    nothing = pcapng("<", b"", some[at:], at_client((DARWIN, bytes(4))))
    found = [[sides(row)[0] for row in connections(tmp_path / "a.pcapng", first + rest)] for rest in (second, nothing)]
    assert found == [[Process(7, "first"), Process(8, "second")], [Process(7, "first"), None]]


def test_connections_in_two_address_spaces_have_no_process_that_may_be_the_others(tmp_path: Path) -> None:
    def tagged(data: bytes, vlan: int) -> bytes:
        return data[:12] + b"\x81\x00" + vlan.to_bytes(2, "big") + data[12:]

    one, other = packets(OF_VERSIONS["0-9-1"]), packets("091_tx.pcap")
    port = one[0][1][34:36]  # of the client, which the other one gets, too

    def moved(data: bytes, sent: bool) -> bytes:
        at = 34 if sent else 36
        return data[:at] + port + data[at + 2 :]

    both = [(us, tagged(data, 1), sent) for us, data, sent in one]
    both += [(us - other[0][0] + one[0][0], tagged(moved(data, sent), 2), sent) for us, data, sent in other]
    both.sort()
    for processes, expected in (((b"PID: 7", b"PID: 8"), {None}), ((b"PID: 7", b"PID: 7"), {Process(7)})):
        comments = [processes[data[15] - 1] for _, data, _ in both]

        def given(sent: bool, at: int, comments: list[bytes] = comments) -> list[tuple[int, bytes]]:
            return [(COMMENT, comments[at]), (FLAGS, struct.pack("<I", OUT if sent else IN))]

        rows = connections(tmp_path / "a.pcapng", pcapng("<", b"", both, given))
        assert (len(rows), {sides(row)[0] for row in rows}) == (2, expected)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)
    else:
        yield value.decode("latin-1") if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_arguments_labels_and_annotations_are_in_no_table_run_or_state(notation: str, tmp_path: Path) -> None:
    before, some, _ = NOTATIONS[notation]("<")
    data = pcapng("<", before, packets(OF_VERSIONS["0-9-1"]), at_client(*some))
    path = tmp_path / "a.pcapng"
    connections(path, data)
    runs = decoding.runs([path])
    found = [*texts(runs.drop_columns(["payload"]).to_pylist()), *texts(local_rows.tables_of_captures([path]))]
    lake = pieces.Lake()
    lake.add(pieces.piece(runs, pieces.BEGINNING, pieces.times(runs)[20]))
    assert lake.states
    found += texts([*lake.states.values()])
    assert not [text for text in found if SECRET in text]


def test_texts_are_masked_escaped_and_bounded() -> None:
    assert commented([b"PID: 7\nCmd: amqp://alice:wonderland@host/q"]) == Process(7, "q")
    assert commented([b"ContainerImage: https://alice:wonderland@registry.example/pay"]) == Process(
        container_image="https://****@registry.example/pay"
    )
    assert commented([b"PodName: a\xff\x1b[31m"]) == Process(pod_name="a\\xff\x1b[31m")
    long = commented([b"PodName: " + "é".encode() * 5000]).pod_name
    assert set(long or "") == {"é"}
    assert len((long or "").encode()) in (LIMITS.process_text_bytes - 1, LIMITS.process_text_bytes)
    assert commented([b"PID: 99999999999999999999\nCmd: x y z"]).name == "x"
    assert commented([b"Cmd: /bin/run --password=wonderland"]) == Process(name="run")
    assert commented([b"PID: -1\nCmd:\nPodName: "]) == Process()


@pytest.mark.parametrize("notation", ["macOS", "ptcpdump"])
def test_runs_splits_and_pieces_change_nothing(notation: str, tmp_path: Path) -> None:
    before, some, process = NOTATIONS[notation]("<")
    path = tmp_path / "a.pcapng"
    connections(path, pcapng("<", before, packets("091_port_reuse.pcap", 200), at_client(*some)))
    runs = decoding.in_flow_order(decoding.runs([path]))
    whole = pieces.rows_of(runs)
    assert sum(repr(process.pid) in row for row in whole["connections"]) == 2
    for sizes in ({"splitBytes": 1500}, {"blockBytes": 700}, {"runBytes": 100}, {"splitBytes": 900, "blockBytes": 400}):
        pieces.same(pieces.rows_of(decoding.in_flow_order(decoding.runs([path], **sizes))), whole, str(sizes))
    times = pieces.times(runs)
    for cuts in ([times[1]], [times[5], times[20]], times[2:30:9]):
        pieces.same(pieces.in_pieces(runs, cuts), whole, str(cuts))


def test_odd_blocks_and_options_are_ignored(tmp_path: Path) -> None:
    some = packets(OF_VERSIONS["0-9-1"])
    odd: list[tuple[int, bytes]] = [
        (PROCESS_ID, b"\x07"), (PROCESS_ID, bytes(8)), (DARWIN, bytes(2)), (DARWIN, b"\xff" * 4), (EFFECTIVE, b""),
        (COMMENT, b"PID: none"), (COMMENT, b"PID:"), (COMMENT, b""), (FLAGS, b"\x02"), (0xFFFF, bytes(300)),
    ]  # fmt: skip
    before = b"".join(
        [
            block("<", 0x80000001, b""), block("<", 0x80000001, bytes(4)), block("<", 0x0BAD, struct.pack("<I", 32622)),
            wireshark("<", 7, (2, b"other"), kind=99), block("<", 0x0BAD, struct.pack("<III", 32622, 3, 1 << 31)),
            block("<", 0x0BAD, struct.pack("<III", 1, 3, 4)), wireshark("<", 0, (2, b"idle")),
        ]
    )  # fmt: skip
    (row,) = connections(tmp_path / "a.pcapng", pcapng("<", before, some, lambda sent, at: [odd[at % len(odd)]]))
    assert sides(row) == (None, None, None)
    chance = random.Random(5)
    for _ in range(60):
        noise = [(chance.choice([1, 2, 8, 0x8001, 0x8003]), chance.randbytes(chance.randrange(12))) for _ in range(4)]
        data = bytearray(pcapng("<", before, some[:3], lambda sent, at, noise=noise: noise))  # type: ignore[misc]
        for _ in range(chance.randrange(4)):
            data[chance.randrange(28, len(data))] = chance.randrange(256)
        walker = PcapngWalker()
        records, _ = walker.walk(memory(bytes(data)), True)
        assert len(walker.process_of) in (0, len(records))


def memory(data: bytes) -> Any:
    return np.frombuffer(bytearray(data), np.uint8)


def test_more_processes_than_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    few = 50
    monkeypatch.setattr("codec.capture.processes.LIMITS", type(LIMITS)(processes=few))
    some = packets(OF_VERSIONS["0-9-1"])[:1] * (2 * few)
    for before, given in (
        (b"", lambda sent, at: [(COMMENT, b"PID: %d" % (at + 1))]),
        (b"", lambda sent, at: [(PROCESS_ID, struct.pack("<II", at + 1, 0))]),
        (
            b"".join(darwin("<", at + 1, (2, b"p")) for at in range(2 * few)),
            lambda sent, at: [(DARWIN, struct.pack("<I", at))],
        ),
    ):
        walker = PcapngWalker()
        walker.walk(memory(pcapng("<", before, some, given)), True)  # type: ignore[arg-type]
        assert walker.process_of.tolist() == [4 * (at + 1) for at in range(few)] + [0] * few


def test_cost_is_linear_when_each_packet_has_another_process() -> None:
    one = packets(OF_VERSIONS["0-9-1"])[:1]

    def seconds_of(size: int) -> float:
        data = memory(pcapng("<", b"", one * size, lambda sent, at: [(COMMENT, b"PID: %d\nCmd: /bin/x" % (at + 1))]))
        begun = time.process_time()
        PcapngWalker().walk(data, True)
        return time.process_time() - begun

    assert_linear(seconds_of, (300, 1200))


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        (Process(7, "python3", "pay", "5f0c", "i", "pay-5b", "shop"), "billing (pay-5b)"),
        (Process(7, "python3", "pay"), "billing (pay)"),
        (Process(7, "python3"), "billing (python3)"),
        (Process(7), "billing"),
        (None, "billing"),
    ],
)
def test_summary_and_report_name_the_pod_container_or_program(process: Process | None, expected: str) -> None:
    row = {"client_name": "billing", "client_process": process and process._asdict()}
    assert application(row) == expected
    columns = {"client_product": "p", "proxied_client_ip": None, "client_ip": "192.0.2.1"}
    kinds = pa.schema([(name, pa.string()) for name in ("client_name", *columns)])
    table = pa.Table.from_pylist([row | columns], kinds.append(pa.field("client_process", arrow_type(PROCESS))))
    connection = duckdb.connect()
    connection.register("connections", table)
    assert connection.sql(f"SELECT {APPLICATION} FROM connections").fetchall() == [(expected,)]
