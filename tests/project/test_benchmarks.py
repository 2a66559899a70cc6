"""The benchmarks measure what they say: generated traffic of every profile is sound to tshark and to the second reader,
and figures are computed as by hand."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import independent_tcp as tcp
import pyarrow as pa
import pyarrow.parquet
import pytest
from cut_support import NEEDS_TSHARK, fields, tshark
from decoding import decode_table, in_flow_order, runs
from proton import Data, Message

from benchmarks.eventlog import stages
from benchmarks.figures import Line
from benchmarks.generate import generate
from benchmarks.model import MEASURES, Run, model, prediction
from benchmarks.processes import DRIVER, peaks
from benchmarks.profiles import PROFILES, SCRIPTS
from benchmarks.run import Budget
from pipeline.audit import findings_in
from pipeline.run.local_processes import LocalProcesses
from pipeline.tables.write_tables import write

SIZE = 250_000
# Smaller than the profile has them, but of several frames.
SMALLER = {"large": {"message_bytes": 200_000, "connections": 2}, "offload": {"connections": 2}}
LEFT_RULES = {"SEC-01", "SEC-02", "SEC-04", "L10-63"}
UNKNOWN_TO_TSHARK = "AMQP (unknown version)"  # its name for the header of 0-9-1
WRONG = ("_ws.malformed", *(f"tcp.analysis.{what}" for what in (
    "lost_segment", "ack_lost_segment", "retransmission", "out_of_order", "spurious_retransmission", "duplicate_ack",
)))  # fmt: skip


def written(folder: Path, name: str, seed: int = 1) -> Path:
    """A small capture of a profile."""
    path = folder / f"{name}-{seed}.pcap"
    generate(path, SIZE, seed, profile=PROFILES[name], **SMALLER.get(name, {}))
    return path


@pytest.fixture(scope="module", params=PROFILES)
def traffic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("profiles"), request.param)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("many"), "many")


@pytest.mark.parametrize("name", PROFILES)
def test_equal_arguments_give_equal_bytes(name: str, tmp_path: Path) -> None:
    digests = []
    for folder, seed in (("first", 1), ("again", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        digests.append(hashlib.sha256(written(tmp_path / folder, name, seed).read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_the_peers_keep_to_the_protocol(traffic: Path, tmp_path: Path) -> None:
    """Logins as guest, without TLS and by one container-id for all are left: they change no traffic."""
    found = severities(traffic, tmp_path / "tables")
    assert {rule for rule, severity in found.items() if severity != "info"} <= LEFT_RULES
    assert found


def test_long_sessions_keep_to_the_protocol(tmp_path: Path) -> None:
    """A session of 1.0 with more transfers than a usual window of 2048."""
    path = tmp_path / "long.pcap"
    generate(path, 2_500_000, message_bytes=20, connections=1, profile=PROFILES["amqp10"])
    found = severities(path, tmp_path / "tables")
    assert {rule for rule, severity in found.items() if severity != "info"} <= LEFT_RULES
    transfers = pyarrow.parquet.read_table(tmp_path / "tables" / "methods", columns=["name"])["name"].to_pylist()
    assert transfers.count("transfer") > 2 * 2048


def severities(capture: Path, tables: Path) -> dict[str, str]:
    """The rules that the traffic breaks, with their severities."""
    write(LocalProcesses, [str(capture)], str(tables))
    files = {table.name: [str(path) for path in table.glob("*.parquet")] for table in tables.iterdir()}
    return {row["rule_id"]: row["severity"] for row in findings_in(files).to_pylist()}


@NEEDS_TSHARK
def test_tshark_finds_as_many_frames_and_nothing_wrong(traffic: Path) -> None:
    details = tshark(traffic, "-T", "pdml")
    found = sum('<proto name="amqp"' in line for line in details)
    packets = fields(traffic, "_ws.col.Info", *WRONG)
    found += sum(UNKNOWN_TO_TSHARK in info for info, *_ in packets)
    rows = decode_table(in_flow_order(runs([traffic]))).select(["kind", "status"]).to_pylist()
    statuses = Counter(row["status"] for row in rows if row["kind"] == "frame")
    assert statuses == {"ok": found}
    assert [packet for packet in packets if any(packet[1:])] == []


def test_every_stream_is_complete(traffic: Path) -> None:
    captured = tcp.packets([traffic])
    times = [packet.ts_ns for packet in captured]
    assert times == sorted(times)
    for connection in tcp.connections(captured):
        assert connection.complete
        assert all(half.fin_at == len(half.data) for half in connection.halves.values())


def test_packets_acknowledge_only_what_was_sent(traffic: Path) -> None:
    sent: dict[tuple[tcp.Endpoint, tcp.Endpoint], int] = {}
    for packet in tcp.packets([traffic]):
        there, back = (packet.source, packet.target), (packet.target, packet.source)
        assert sent.get(there, packet.seq) == packet.seq
        sent[there] = (packet.seq + packet.wire_len + bool(packet.flags & (tcp.SYN | tcp.FIN))) % 2**32
        if packet.flags & tcp.ACK:
            assert packet.ack == sent[back]


def test_each_version_has_its_third_of_the_mixed_connections(tmp_path: Path) -> None:
    headers = Counter(
        bytes(half.data[:8])
        for connection in tcp.connections(tcp.packets([written(tmp_path, "mixed")]))
        for half in connection.halves.values()
        if half.data.startswith(b"AMQP")
    )
    # The broker answers with a header of its own in 0-10 and 1.0.
    assert headers == {b"AMQP\x00\x00\x09\x01": 4, b"AMQP\x01\x01\x00\x0a": 8, b"AMQP\x00\x01\x00\x00": 8}


@pytest.mark.parametrize(("name", "longest"), [("usual", 1448), ("offload", 65_160)])
def test_segments_and_the_capture_are_as_long_as_asked_for(name: str, longest: int, tmp_path: Path) -> None:
    path = tmp_path / "traffic.pcap"
    generate(path, 8 * SIZE, profile=PROFILES[name])
    assert max(packet.wire_len for packet in tcp.packets([path])) == longest
    assert path.stat().st_size == pytest.approx(8 * SIZE, rel=0.1)


def test_short_connections_are_many_and_of_about_the_size(many: Path) -> None:
    connections = tcp.connections(tcp.packets([many]))
    assert len(connections) == pytest.approx(SIZE / PROFILES["many"].connection_bytes, rel=0.2)
    assert many.stat().st_size == pytest.approx(SIZE, rel=0.1)


@NEEDS_TSHARK
def test_a_message_id_is_published_once_and_delivered_once(many: Path) -> None:
    cells = fields(many, "amqp.method.properties.message_id", only="amqp.method.properties.message_id")
    ids = Counter(name for (cell,) in cells for name in cell.split(","))
    assert len(ids) > 50
    assert set(ids.values()) == {2}


def contents_0_9_1(half: tcp.Half) -> Iterator[tuple[bytes, bytes]]:
    """(message-id, body) of each message of a stream of frames to the last byte."""
    frames, rest = tcp.plain_frames(half)
    assert rest == 0
    for frame in frames:
        if frame.kind == 2:
            at = frame.payload.index(b"\x13m-")  # a short string of 19 bytes
            message_id, size, found = frame.payload[at + 1 : at + 20], int.from_bytes(frame.payload[4:12], "big"), b""
        elif frame.kind == 3:
            found += frame.payload
            if len(found) == size:
                yield message_id, found


def contents_0_10(half: tcp.Half) -> Iterator[tuple[bytes, bytes]]:
    """Transport, 4.4.1: flags, segment type (2 header, 3 body), size of the frame, ..., payload from byte 12."""
    at, uuid = 8, b""
    while at < len(half.data):
        kind, end = half.data[at + 1], at + int.from_bytes(half.data[at + 2 : at + 4], "big")
        payload, at = bytes(half.data[at + 12 : end]), end
        if kind == 2:  # delivery-properties; message-properties: size, class, flags, content-length, message-id
            start = 4 + int.from_bytes(payload[:4], "big") + 4 + 2 + 2 + 8
            uuid = payload[start : start + 16]
        elif kind == 3:
            yield uuid, payload


def contents_1_0(half: tcp.Half) -> Iterator[tuple[bytes, bytes]]:
    """Transport, 2.3: size, offset of the performative (2 words here), type, channel; behind it the message."""
    at = 8
    while at < len(half.data):
        end = at + int.from_bytes(half.data[at : at + 4], "big")
        performative, frame = Data(), bytes(half.data[at + 8 : end])
        encoded, at = frame[performative.decode(frame) :], end
        if encoded:
            message = Message()
            message.decode(encoded)
            yield str(message.id).encode(), bytes(cast(bytes, message.body))


CONTENTS = {"0-9-1": contents_0_9_1, "0-10": contents_0_10, "1.0": contents_1_0}


@pytest.mark.parametrize("name", ["usual", "small", "many"])
@pytest.mark.parametrize("version", SCRIPTS)
def test_each_message_is_published_and_delivered_once_and_differs_from_all_others(
    version: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "traffic.pcap"
    generate(path, 3 * SIZE, profile=replace(PROFILES[name], versions=(version,)))
    halves = [half for connection in tcp.connections(tcp.packets([path])) for half in connection.halves.values()]
    found = [content for half in halves for content in CONTENTS[version](half)]
    for column in zip(*found, strict=True):
        times = Counter(column)
        assert len(times) > 200
        assert set(times.values()) == {2}
    assert set(Counter(found).values()) == {2}


def test_bodies_compress_as_those_of_real_traffic(tmp_path: Path) -> None:
    """To a half or a third; heads of JSON are alike, values are not."""
    path = tmp_path / "traffic.pcap"
    generate(path, 4 * SIZE, profile=PROFILES["usual"])
    halves = [half for connection in tcp.connections(tcp.packets([path])) for half in connection.halves.values()]
    bodies = b"".join({body for half in halves for _, body in contents_0_9_1(half)})
    assert 2 < len(bodies) / len(pa.Codec("zstd", 1).compress(bodies)) < 3


@NEEDS_TSHARK
def test_deliveries_of_1_0_are_numbered_from_0_on_each_session(tmp_path: Path) -> None:
    path = written(tmp_path, "mixed")
    by_session: dict[tuple[str, str], list[int]] = {}
    for stream, port, cell in fields(path, "tcp.stream", "tcp.srcport", "amqp.performative.arguments.deliveryId"):
        by_session.setdefault((stream, port), []).extend(int(number, 0) for number in cell.split(",") if number)
    numbered = {key: numbers for key, numbers in by_session.items() if numbers}
    assert len(numbered) == 8
    assert all(numbers == list(range(len(numbers))) for numbers in numbered.values())


def test_the_line_through_points_is_the_least_squares_line() -> None:
    # Means 2 and 21; slope ((-1)(-11) + 0 + (1)(12)) / 2 = 11.5; on it 9.5, 21, 32.5: off by 0.5 / 9.5 at most.
    points = [(1.0, 10.0), (2.0, 20.0), (3.0, 33.0)]
    line = Line.through(points)
    assert [line.per_gb, line.fixed] == pytest.approx([11.5, -2])
    assert line.deviation(points) == pytest.approx(0.5 / 9.5)


@pytest.mark.parametrize(
    ("times", "at_least", "verdict"),
    [((12, 2), True, "met"), ((11, 2), True, "missed"), ((12, 2), False, "met"), ((13, 2), False, "missed")],
)
def test_a_budget_compares_two_medians(times: tuple[float, float], at_least: bool, verdict: str) -> None:
    line = Budget("what", "slow", "fast", 6, at_least).line({"slow": times[0], "fast": times[1]})
    assert line is not None
    assert line.endswith(verdict)
    assert Budget("what", "slow", "fast", 6).line({"fast": 1}) is None


def test_a_model_separates_the_fixed_cost_from_the_cost_per_gb() -> None:
    def run(gb: float, read: float, decode: float, seconds: float) -> Run:
        steps = {
            name: dict.fromkeys(MEASURES, 0.0) | {"seconds": spent}
            for name, spent in (("read frames", read), ("decode frames", decode))
        }
        return Run(gb, seconds, walk=0.5 * gb, steps=steps, files=10, tables=int(gb * 1e8))

    # Tasks: read 2 + 4 GB, decode 1 + 6 GB, together 3 + 10 GB. The clock: 15 + 10.5 GB on 2 cores, of which 0.5 GB are
    # the walk, so half of them are busy, and 15 - 3 / 2 seconds are the driver's.
    found = model(run(0.5, 4, 4, 20.25), run(1, 6, 7, 25.5), cores=2)
    assert found.steps["read frames"]["seconds"] == Line(2, 4)
    assert found.steps["decode frames"]["seconds"] == Line(1, 6)
    assert (found.busy, found.driver) == (0.5, 13.5)
    # Of 100 GB a run, files of more than 100 / 64 = 1.56 GB are cut; of 1 GB a run, those of more than 256 MiB.
    for runs_a_day, file_gb, walked in ((10, 1.5, 0), (10, 1.6, 100), (1000, 0.26, 0), (1000, 0.27, 1)):
        each = 1000 / runs_a_day
        predicted = prediction(found, daily_gb=1000, runs=runs_a_day, executors=20, cores=4, file_gb=file_gb)
        assert predicted["core_hours_a_day"] == pytest.approx(runs_a_day * (3 + 10 * each) / 3600)
        assert predicted["seconds_each_run"] == pytest.approx((3 + 10 * each) / (80 * 0.5) + 13.5 + 0.5 * walked)
        assert predicted["tables_gb_a_day"] == pytest.approx(100)


def test_an_event_log_tells_what_each_stage_took(tmp_path: Path) -> None:
    def task(stage: int, run_ms: int, shuffled: int) -> dict[str, object]:
        metrics = {
            "Executor Run Time": run_ms, "Executor CPU Time": run_ms * 500_000, "JVM GC Time": 3,
            "Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled},
            "Disk Bytes Spilled": 5, "Output Metrics": {"Bytes Written": 8},
        }  # fmt: skip
        return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}

    def ended(stage: int, scope: str) -> dict[str, object]:
        python = [{"Name": "time to execute Python code", "Value": "40"}, {"Name": "rows", "Value": "9"}]
        info = {"Stage ID": stage, "RDD Info": [{"Scope": json.dumps({"name": scope})}], "Accumulables": python}
        return {"Event": "SparkListenerStageCompleted", "Stage Info": info}

    def query(number: int, table: str, numbers: list[int]) -> list[dict[str, object]]:
        plan = f"Execute InsertIntoHadoopFsRelationCommand\nArguments: file:/tmp/x/{table}, false, Parquet"
        if not table:  # workers write, not Spark
            plan = "MapInArrow\n+- Range\n\n(1) MapInArrow\nArguments: WriteTables(flow#0)#7, [folder#8]"
        if table == "message_flows":
            plan = "MapInArrow\n+- Sort\n\n(1) MapInArrow\nArguments: WriteFlows(key#0)#7, [folder#8]"
        start = {"Event": "a.b.SparkListenerSQLExecutionStart", "executionId": number, "physicalPlanDescription": plan}
        properties = {"spark.sql.execution.id": str(number)}
        return [start, {"Event": "SparkListenerJobStart", "Stage IDs": numbers, "Properties": properties}]

    log = [
        *query(0, "", [0, 1]), task(0, 100, 20), task(0, 200, 30), ended(0, "Range"),
        task(1, 400, 0), ended(1, "MapInArrow"), *query(1, "messages", [2]), task(2, 50, 0), ended(2, "Exchange"),
        *query(2, "message_flows", [3]), task(3, 50, 0), ended(3, "MapInArrow"),
    ]  # fmt: skip
    (tmp_path / "local-1700000000000").write_text("".join(json.dumps(event) + "\n" for event in log))
    found = stages(tmp_path)
    assert [(stage.table, stage.part) for stage in found] == [
        ("decoded", "read"),
        ("decoded", "decode"),
        ("messages", "derive"),
        ("message_flows", "derive"),
    ]
    read = found[0]
    assert [read.seconds, read.jvm, read.python, read.gc] == pytest.approx([0.3, 0.15, 0.04, 0.006])
    assert (read.shuffle_written, read.spilled, read.written) == (50, 10, 16)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the files of Linux about processes")
def test_memory_and_processor_time_of_other_processes_are_measured() -> None:
    spend = "import time\nheld = bytearray(200_000_000)\nwhile time.process_time() < 1: pass\ninput()"
    child = subprocess.Popen([sys.executable, "-c", spend], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with peaks(child.pid) as seen:
        while seen.processor < 0.5:
            time.sleep(0.1)
    child.communicate(b"\n")
    assert 200e6 < seen.highest()[DRIVER] < 260e6
    assert 0.5 <= seen.processor < 5


def test_the_profiles_are_those_that_the_documentation_lists() -> None:
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    assert [name for name in PROFILES if f"| `{name}` |" not in text] == []


def test_the_kernels_of_each_family_have_a_speed() -> None:
    """At the smallest size; a kernel that was not measured would divide by zero."""
    words = [sys.executable, "-m", "benchmarks.kernels", "--mb", "0.1", "--runs", "1"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    figures = {line.split()[0]: [float(figure.replace(",", "")) for figure in line.split()[1:]] for line in lines[2:]}
    assert figures.keys() == {"0-9-1", "0-10", "1.0"}
    assert all(min(of_family) > 0 for of_family in figures.values())


def test_the_cost_of_all_tables_is_of_all_rows(tmp_path: Path) -> None:
    """Both passes make the same rows."""
    words = [sys.executable, "-m", "benchmarks.tables_of", str(written(tmp_path, "usual"))]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["read", "first", "second"]
    assert lines[1].split()[2] == lines[2].split()[2]
    assert float(lines[2].split()[1]) > 0
