"""Compile all kernels before the first capture is read: `python -m udfs.warm`.

Compiled kernels are cached on disk (`codec.compiler.kernel`), so this is worth a minute or two after an installation or
an upgrade, on every machine that runs workers. It reads two captures of a few packets with the code that workers run,
so that each kernel is compiled for exactly the types it meets there. A second process compiles half of them at the same
time."""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from codec.compiler import PACKAGE
from codec.compiler import cache as kernel_cache
from codec.compiler import kernel as kernel_settings
from codec.protocol.versions import headers
from codec.tables import LONG, table_of
from codec.variant import encode
from udfs.arrow.types import variants
from udfs.workers.progress import REFRESH_SECONDS, progress_line, time_left

SYN, ACK, PSH_ACK, FIN_ACK = 0x02, 0x10, 0x18, 0x11
CLIENT, SERVER = (0x0A000001, 40000), (0x0A000002, 5672)
INTERRUPTED = 128 + signal.SIGINT  # exit code
SECOND = "second"  # the argument of the second process


def _packet(source: tuple[int, int], target: tuple[int, int], seq: int, ack: int, flags: int, payload: bytes) -> bytes:
    """Ethernet, IPv4 and TCP headers around `payload`, checksums left zero."""
    tcp = struct.pack(">HHIIBBHHH", source[1], target[1], seq, ack, 0x50, flags, 65535, 0, 0)
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, source[0], target[0])
    return bytes(12) + b"\x08\x00" + ip + tcp + payload


def packets(greeting: bytes) -> list[bytes]:
    """A connection that says `greeting` and ends."""
    return [
        _packet(CLIENT, SERVER, 99, 0, SYN, b""),
        _packet(SERVER, CLIENT, 499, 100, SYN | ACK, b""),
        _packet(CLIENT, SERVER, 100, 500, PSH_ACK, greeting),
        _packet(CLIENT, SERVER, 100 + len(greeting), 500, FIN_ACK, b""),
    ]


def in_fragments(packet: bytes) -> list[bytes]:
    """One of the packets as two IP fragments: 8 bytes and more to come, the rest from unit 1 on."""
    head, data = packet[:34], packet[34:]
    return [
        head[:16] + struct.pack(">HHH", 20 + len(part), 1, flags_and_offset) + head[22:] + part
        for flags_and_offset, part in ((0x2000, data[:8]), (1, data[8:]))
    ]


def pcap(recorded: list[bytes]) -> bytes:
    """A little-endian pcap of Ethernet packets, a microsecond apart."""
    records = [struct.pack("<IIII", 0, i, len(data), len(data)) + data for i, data in enumerate(recorded)]
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(records)


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))


def pcapng(recorded: list[bytes]) -> bytes:
    """The same as pcapng: a section, an interface, enhanced packet blocks."""
    section = _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = _block(1, struct.pack("<HHI", 1, 0, 65535))
    blocks = [_block(6, struct.pack("<IIIII", 0, 0, i, len(data), len(data)) + data) for i, data in enumerate(recorded)]
    return section + interface + b"".join(blocks)


def warm_values() -> None:
    """Compile what turns bytes into VARIANT, for every family, in rows and standalone."""
    from codec.amqp.batches import HEAP_BYTES, decode_values, definitions
    from codec.amqp.standalone import ValueDecoder
    from codec.protocol import rows as R
    from codec.protocol.v1_0_contents import end_of_messages, messages_inside
    from codec.protocol.versions import PROTOCOL_HEADER, V0_9_1, V1_0_FAMILY
    from codec.variant import new_writer

    known = headers()
    rows = R.new_rows(len(known.version), HEAP_BYTES, 1)
    rows.cells[:, R.TYPE] = PROTOCOL_HEADER
    rows.cells[:, R.VERSION] = known.version
    rows.cells[:, R.BYTES_END] = range(4, 4 * len(known.version) + 1, 4)
    decode_values(rows.cells, rows.data, 0, len(known.version), definitions(), new_writer(), new_writer())
    data, offsets = np.zeros(4, np.uint8), np.array([0, 4])
    list(ValueDecoder().tables(data, offsets, V0_9_1))
    list(ValueDecoder().values(data, offsets))
    batch = bytes.fromhex("75 00531445 005375a005 005375a000")  # a transfer with a message in a data section
    rows.cells[0] = 0
    rows.cells[0, R.BYTES_END], rows.cells[0, R.DIGEST] = len(batch), R.BATCH
    rows.data[: len(batch)] = np.frombuffer(batch, np.uint8)
    tables = definitions()[V1_0_FAMILY][1]
    end_of_messages(rows.cells, rows.data, 0, 1, tables[0])
    messages_inside(rows.cells, rows.data, 0, 1, *tables)


def warm_stream() -> None:
    """Compile the stream decoder, for connections and for standalone frames, but not what decodes values."""
    from codec.amqp.batches import Batch
    from codec.amqp.standalone import StandaloneDecoder
    from codec.net.layers import FLOW_BYTES, SEGMENT
    from codec.protocol.rows import Rows
    from codec.protocol.versions import V0_9_1

    class RowsOnly(StandaloneDecoder):
        def _decoded(self, rows: Rows, count: int) -> Iterator[Batch]:
            return iter(())

    list(RowsOnly().feed(bytes(FLOW_BYTES), np.zeros(1, SEGMENT), np.zeros(0, np.uint8)))
    decoder = RowsOnly()
    list(decoder.feed(bytes(FLOW_BYTES), np.zeros(1, SEGMENT), np.zeros(0, np.uint8)))
    list(decoder.finish())
    list(RowsOnly().frames(np.zeros(8, np.uint8), np.array([0, 8]), V0_9_1))


def warm_captures(decode: bool) -> None:
    """Compile the readers and the packet layers: read two captures; and `decode` them."""
    from codec.tables import TABLES, WORKER_TABLES
    from udfs.source.options import parse_options
    from udfs.source.packets import PcapReader
    from udfs.source.sources import TcpRunsReader
    from udfs.tables import tables_of
    from udfs.workers.worker_config import Config

    frames_only = Config({name: TABLES[name] for name in WORKER_TABLES}, False, frozenset({"frames"}))
    greetings = [b"AMQP" + data.tobytes() for data in headers().data]
    recorded = [data for greeting in greetings for data in packets(greeting)]
    recorded[-1:] = in_fragments(recorded[-1])
    with tempfile.TemporaryDirectory() as directory:
        for name, written in (("warm.pcap", pcap), ("warm.pcapng", pcapng)):
            path = Path(directory) / name
            path.write_bytes(written(recorded))
            options = {"path": str(path), "ports": "5672"}
            runs = TcpRunsReader(parse_options(options))
            for partition in runs.partitions():
                batches = runs.read(partition)
                list(tables_of(batches, frames_only) if decode else batches)
            packets_of = PcapReader(parse_options(options))
            for task in packets_of.partitions():
                list(packets_of.read(task))


def warm_states() -> None:
    """Compile what is called only for a connection that continues in another capture: here one of 0-10, cut within a
    content and within a segment."""
    from codec.amqp.decoder import CarriedStates, Decoder
    from codec.layers.stack import Layers
    from udfs.decode.flow_order import Files, flows_in_order
    from udfs.source.sources import read_runs

    transfer = bytes.fromhex("0401 0100 0000")
    # A body has to follow; more of the segment has to follow.
    frames = [
        struct.pack(">BBHBBH4x", flags, 1, 12 + len(transfer), 0, 1, channel) + transfer
        for flags, channel in ((0x0B, 1), (0x0A, 2))
    ]
    whole, carried = packets(b"AMQP\x01\x01\x00\x0a" + b"".join(frames)), CarriedStates((), Files())
    with tempfile.TemporaryDirectory() as directory:
        for number, piece in enumerate((whole[:3], whole[3:])):
            path = Path(directory) / f"{number}.pcap"
            path.write_bytes(pcap(piece))
            carried.files = Files()
            decoder = Decoder(carried=carried, layers=Layers())
            runs = read_runs({"path": str(path), "ports": "5672"})
            for part in flows_in_order(runs.to_batches(), carried.files):
                if not isinstance(part, str):
                    list(decoder.feed_flows(*part))
            list(decoder.finish())


def warm_layers() -> None:
    """Compile what lies between TCP and AMQP: an upgrade to WebSocket, records of TLS, secrets in a pcapng."""
    from codec.capture.pcapng import SecretsWalker
    from codec.layers.chunks import Chunks, Output
    from codec.layers.stack import Layers
    from codec.layers.tls_ciphers import (
        SUITES,
        Aead,
        Keys,
        clear_end,
        decrypt,
        gather,
        ignored_end,
        possible_records,
        split,
    )
    from codec.memory import as_records, readonly
    from codec.net.layers import FLOW_BYTES, SEGMENT

    segments = as_records(np.zeros(4, SEGMENT))
    request, answer = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\x82", b"HTTP/1.1 101 Yes\r\n\r\n"
    payload = np.frombuffer(bytearray(request + answer), np.uint8)
    segments["wire_len"] = segments["cap_len"] = 2 * (len(request), len(answer))
    segments["payload_at"], segments["direction"] = 2 * (0, len(request)), 2 * (0, 1)
    flows = np.arange(2 * FLOW_BYTES, dtype=np.uint8).reshape(2, FLOW_BYTES)
    layers = Layers()  # one of two connections ends here: such are read together
    list(layers.feed(flows, np.array([2, 4]), readonly(segments), readonly(payload)))
    list(layers.finish())
    record = np.frombuffer(bytearray(b"\x17\x03\x03\x00\x11" + bytes(17)), np.uint8)
    chunks = Chunks._make([*np.array([[0], [0], [0], [len(record)]]), record])
    clear_end(chunks.direction, chunks.size, 0, np.zeros(2, np.bool_))
    aead = Aead(SUITES[0x1301], Keys(bytes(16), bytes(12)))
    records = split(chunks, (b"", b""))
    decrypt(records, 0, 1, (aead, None), [0, 0], Output(len(record)))
    columns = records.data, records.direction, records.at, records.size
    ignored_end(*columns, 0, np.zeros((2, 4), np.bool_), np.zeros((2, 256), np.bool_))
    gather(*columns, 0, np.empty(1, np.uint8))
    possible_records(record, 0, np.empty((1, 2), np.int64))
    SecretsWalker().walk(np.zeros(1, np.uint8))


def warm_settlement() -> None:
    """Compile the settlement engine: a message opened, noted, marked and settled, another left; and returns."""
    from codec.conversation.channel_outcomes import matched
    from codec.conversation.settlement import settled_at_once
    from codec.memory import as_kernel_array

    events = {
        "connection": [1] * 6, "map_no": [1] * 6, "frame_no": range(6), "opens": [1, 1, 1, 0, 0, 0],
        "first": [2, 3, 1, 1, 1, 1], "last": [0, 0, 0, 1, 1, 1], "outcome": [0, 0, 0, 1, 0, 0],
        "final": [0, 0, 0, 0, 1, 1], "effective_ns": range(6), "transaction": [0, 0, 0, 0, 2, 0],
    }  # fmt: skip
    settled_at_once({name: np.array(column) for name, column in events.items()})
    matched(*(as_kernel_array(np.array([0, 1])) for _ in range(4)))


def warm_conversations() -> None:
    """Compile the trackers of channels and sessions, also saving and restoring them, and the reader of fields. A gap is
    enough for channels; sessions need a transfer, a subscription and the end of a transaction."""
    from codec.packing import Reader, Writer
    from udfs.conversation.channels import ChannelTracker
    from udfs.conversation.frame_batch import FrameBatch
    from udfs.conversation.sessions import SessionTracker
    from udfs.decode.frame_rows import ARROW_FRAMES

    columns = {field.name: pa.array([None], field.type) for field in ARROW_FRAMES}
    columns |= {
        "connection_id": pa.array([1]),
        "frame_type": pa.array(["gap"]),
        "arguments": one_variant({"queue": "q"}),
    }
    ids = np.array([1])
    for keep in (False, True):
        channels, sessions = ChannelTracker(keep), SessionTracker(keep)
        channels.feed(FrameBatch(pa.record_batch(columns)))
        channels.pending(ids)
        channels.forget_texts(0)
        for number, name in enumerate(
            ("session.attach", "message.subscribe", "message.transfer", "tx.commit"), start=1
        ):
            own = {"frame_no": pa.array([number]), "content_frame_no": pa.array([number]), "ts_ns": pa.array([number])}
            texts = {"sender": "server" if name == "message.transfer" else "client", "version": "0-10", "name": name}
            arguments = {"command_id": number, "destination": "d", "commands": [{"lower": 0, "upper": 1}]}
            row = {**columns, **own, **{column: pa.array([text]) for column, text in texts.items()}}
            row |= {"channel": pa.array([1], pa.int32()), "arguments": one_variant(arguments)}
            sessions.feed(FrameBatch(pa.record_batch(row)))
        sessions.final()
        sessions.forget_texts(0)
        if keep:
            writer = Writer(1)
            channels.save(ids, writer)
            sessions.save(ids, writer)
            reader = Reader(writer.data())
            channels.restore(ids, reader)
            sessions.restore(ids, reader)
        channels.finish()
        sessions.finish()
        sessions.ended(ids[:0])


def one_variant(arguments: dict[str, object]) -> pa.StructArray:
    """A VARIANT column of one row."""
    return variants([encode(arguments)])


def warm_pairing() -> None:
    """Compile the pairing engine, with a delivery from a stream that was dead-lettered before, and the growth of its
    tables."""
    from codec.hashes.maps import FIRST_SLOTS, new_map, with_room
    from codec.pairing.intervals import Intervals
    from udfs.pairing.flows import TO_PAIR, PairMessages
    from udfs.pairing.hash_partitions import HashPartitioner
    from udfs.pairing.pairable import messages_to_pair
    from udfs.pairing.stream_messages import STREAM_ROWS, OrderInStreams, stream_messages

    names = ("exchange", "routing_key", "queue", "address", "link", "message_id", "correlation_id", "body_sha256")
    copied = (
        "content_type", "content_encoding", "type", "user_id", "app_id", "reply_to", "expiration", "outcome",
        "transaction", "trace_id", "span_id",
    )  # fmt: skip
    numbers = ("connection_id", "channel", "first_frame_no", "ts_ns", "first_ts_ns", "last_ts_ns", "queue_offset")
    sizes = ("body_size", "priority", "settled_ts_ns", "broker_ts_ns", "handled_ts_ns")
    texts = dict.fromkeys((*names, *copied, "version", "server", "broker", "vhost", "streams"), pa.array(["a"]))
    texts["batch_index"] = pa.array([0], pa.int32())
    truths = dict.fromkeys(("browsed", "redelivered", "lossy", "ids_repeat"), pa.array([True]))
    dead = one_variant({"x-death": [{"routing-keys": ["a"]}]})
    messages = {**texts, **truths, **dict.fromkeys((*numbers, *sizes), pa.array([1]))}
    messages |= {"operation": pa.array(["get"]), "headers": dead, "properties": dead}
    rows, nothing = pa.record_batch(messages), pa.record_batch({**messages, "message_id": pa.nulls(1, pa.string())})
    partitioner = HashPartitioner(TO_PAIR, 1)
    in_streams = HashPartitioner(STREAM_ROWS, 1)(stream_messages(rows))
    partitioned = [*partitioner(messages_to_pair(rows)), *partitioner(messages_to_pair(nothing))]
    partitioned += OrderInStreams(partitioner)(in_streams)
    list(PairMessages(table_of("flows", ("flow_id", LONG)))(iter(partitioned)))
    with_room(new_map(), FIRST_SLOTS)
    one = np.ones(1, np.int64)
    Intervals.of(one, one, one).last_begun(one, one)


def warm_functions() -> None:
    """Compile what only the SQL functions use; a protocol header of each family is enough."""
    from udfs.functions import decode_functions as decoding
    from udfs.functions import privacy_functions as names

    data = pa.array([b"AMQP" + data.tobytes() for data in headers().data])
    decoding.version_of(data)
    for version in ("0-9-1", "0-10", "1.0"):
        versions = pa.repeat(pa.scalar(version), len(data))
        for function in (decoding.decode_frame, decoding.decode_arguments, decoding.decode_table, names.redact_frame):
            function(data, versions)


KERNEL = re.compile(r"^@(?:kernel|inlined|outlined|njit)$", re.MULTILINE)


def kernel_count() -> int:
    """The number of kernels in the sources."""
    return sum(len(KERNEL.findall(path.read_text("utf-8"))) for path in PACKAGE.rglob("*.py"))


def tell(names: list[str], done: threading.Event) -> None:
    """Print the names of kernels that this process has compiled, as they come."""
    reported = 0
    while True:
        last = done.wait(REFRESH_SECONDS)
        for name in names[reported:]:
            print(name, flush=True)
            reported += 1
        if last:
            return


def compile_second_half() -> None:
    """What the second process compiles; the other one reads on its stdout how far it is."""
    from codec.compiler.linking import lowered

    done = threading.Event()
    telling = threading.Thread(target=tell, args=(lowered, done))
    telling.start()
    warm_values()
    warm_pairing()
    done.set()
    telling.join()


def compile_all() -> int:
    """Compile everything, in two processes that have about as much to do; the exit code of the second one."""
    from codec.compiler.linking import lowered

    # Without the working directory on its path where this process goes without it: there may be other code.
    options = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *options, "-m", "udfs.warm", SECOND]
    total, elsewhere = kernel_count(), set[str]()

    def line(seconds: float) -> str:
        part = min(len(elsewhere.union(list(lowered))) / total, 0.99)
        percent = f"{part:.0%}".replace("%", " %")
        return f"compiling kernels ... {seconds:.0f} s, {percent}{time_left(part, seconds)}"

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        reading = threading.Thread(target=elsewhere.update, args=(map(str.strip, second.stdout),), daemon=True)
        reading.start()
        try:
            with progress_line(line):
                warm_stream()
                warm_captures(decode=False)
                warm_layers()
                warm_settlement()
                warm_conversations()
                reading.join()
                warm_captures(decode=True)  # with the kernels of both
                warm_states()
                warm_functions()
        except BaseException:
            second.kill()
            raise
    return second.returncode


def main() -> None:
    """Compile everything. Interrupted, it says nothing: the shell or the job that started it does."""
    if sys.argv[1:] == [SECOND]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process kills this one
        compile_second_half()
        return
    try:
        code = compile_all()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code:
        sys.exit(code)
    kernel_cache.directories(kernel_settings.complete_name())  # makes it


if __name__ == "__main__":
    main()
