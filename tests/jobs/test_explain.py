"""`wirehare explain`: the cause that it names is what was done to the connection when the capture was recorded.

The captures are recordings of real brokers and clients. What was done in each is written in their MANIFEST.json: a
wrong password, a virtual host that does not exist, a client that stops answering.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import golden
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader, RawPcapWriter, wrpcap

from jobs.cli import main
from pipeline import explain as explaining
from pipeline import plots
from pipeline.explain.answers import filled
from pipeline.explore.duckdb_tables import Session, connect

# Capture -> the causes of its connections, in the order in which they were opened.
RECORDED = {
    "091_bad_password": ["login-refused"],
    "091_vhost_refused": ["open-refused", "open-refused"],
    "091_heartbeats": ["closed", "heartbeats-of-client"],
    "091_channel_exceptions": ["error", "closed"],
    "091_close_by_broker_and_rst": ["forced", "client-left", "closed"],
    "091_connection_blocked": ["blocked"],
    "091_cancel_by_queue_delete": ["consumer-cancelled", "closed"],
    "091_bad_protocol_header": ["version-refused", "other-protocol"],
    "091_handshake_ok": ["closed"],
    "010_auth": ["closed", "login-refused", "login-refused"],
    "010_bad_frame": ["invalid-bytes", "version-refused"],
    "010_exceptions": ["error"],
    "10_rabbitmq_bad_auth": ["login-refused", "login-refused"],
    "10_rabbitmq_idle_empty_frames": ["heartbeats-of-server", "heartbeats-of-server", "closed"],
    "10_qpidd_link_errors": ["error"],
    "10_qpidd_transactions": ["closed"],
}
START_S = 1_700_000_000


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("explain") / "tables")
    captures = [str(next(golden.CAPTURES.glob(f"{name}.pcap*"))).removesuffix(".frames.jsonl.gz") for name in RECORDED]
    assert main(["decode", *captures, "--output", directory, "-q"]) == 0
    return directory


@pytest.fixture(scope="module")
def session(tables: str) -> Iterator[Session]:
    with connect(tables) as session:
        yield session


def test_what_happened_includes_the_proof(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few events are shown: the error of 091_channel_exceptions is the 11th of 51 frames (tshark), far
    from both ends of its connection."""
    monkeypatch.setattr(explaining, "MOST_EVENTS", (1, 2))
    (error,) = explaining.explain(session, "127.0.0.1:44684")
    assert error.frame_no == 11
    displayed = {event.frame_no: event.text for event in error.events}
    assert "queue.declare queue missing" in displayed[10]
    assert "channel.close 404" in displayed[11]
    assert len([text for text in displayed.values() if not text.endswith(" more")]) < 10


@pytest.mark.parametrize("name", RECORDED)
def test_the_cause_is_what_was_done(name: str, session: Session) -> None:
    rows = session.rows(
        f"SELECT connection_id FROM connections WHERE capture_file LIKE '%/{name}.pcap%' ORDER BY opened_ts"
    )
    answers = [explaining.explain(session, str(row["connection_id"])) for row in rows]
    assert [answer.cause for (answer,) in answers] == RECORDED[name]


def test_a_page_has_what_happened_and_the_proof(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    """tshark: packet 9 of the capture is the connection.close with reply code 403."""
    assert main(["explain", "127.0.0.1:37642", tables]) == 0
    page = capsys.readouterr().out
    assert "The server refused the login of user guest by PLAIN" in page
    assert "connection.close 403 ACCESS_REFUSED" in page
    assert "frame 4, packet 9 at 2026-11-20 10:04:46.040 UTC" in page
    assert "wirehare cut" in page


def test_what_is_inferred_says_why_nothing_else(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The client's last bytes are of packet 40, three seconds before the broker's reset (tshark)."""
    assert main(["explain", "127.0.0.1:57582", tables, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["packet_no"] == 40
    assert "for 3.0 s, and the agreed heartbeat is 1.0 s" in answer["answer"]
    assert any("other connection" in text for text in answer["ruled_out"])


def test_without_a_subject_the_most_expensive_come_first(
    tables: str, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", tables, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == explaining.MOST_ANSWERS
    weights = {cause.id: cause.weight for kind in ("causes", "queue") for cause in explaining.causes(kind)}
    assert [weights[each["cause"]] for each in found] == sorted(
        (weights[each["cause"]] for each in found), reverse=True
    )
    assert not {"closed", "still-open"} & {each["cause"] for each in found}


def test_of_a_long_connection_the_first_and_last_events_are_shown(session: Session) -> None:
    (row,) = session.rows(
        "SELECT connection_id, count(*) AS n FROM methods WHERE name LIKE 'queue.%' OR name LIKE 'channel.%' "
        "GROUP BY 1 ORDER BY n DESC LIMIT 1"
    )
    most = sum(explaining.MOST_EVENTS)
    assert row["n"] > most
    (answer,) = explaining.explain(session, str(row["connection_id"]))
    displayed = [event for event in answer.events if event.who or event.frame_no]
    assert most <= len(displayed) <= most + 3  # with those around the proof
    assert any(event.text.endswith(" more") for event in answer.events)
    assert (displayed[0].text, displayed[-1].text) == ("connects", "ends TCP (FIN)")


def test_captures_are_decoded_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(golden.CAPTURES / "091_handshake_ok.pcap"), "-q"]) == 0
    assert capsys.readouterr().out == "Nothing wrong was found on these connections.\n"


def test_a_queue_that_nobody_consumes(session: Session) -> None:
    """No consumer is the cause exactly where nothing is delivered from the queue."""
    queues = [row["q"] for row in session.rows("SELECT DISTINCT routing_key AS q FROM messages WHERE exchange = ''")]
    assert queues
    for queue in queues:
        consumed = session.rows(
            f"SELECT count(*) AS n FROM messages WHERE operation IN ('deliver', 'get') AND queue = '{queue}'"
        )
        (answer,) = explaining.explain(session, queue)
        assert (answer.cause == "no-consumer") == (consumed[0]["n"] == 0), queue


def test_a_message_by_its_connection_and_frame(session: Session) -> None:
    (row,) = session.rows(
        "SELECT connection_id, first_frame_no FROM messages WHERE operation = 'publish' AND outcome = 'unsettled' "
        "OR outcome = 'acked' ORDER BY ts_ns LIMIT 1"
    )
    (answer,) = explaining.explain(session, f"{row['connection_id']}/{row['first_frame_no']}")
    assert answer.cause in {"done", "not-confirmed"}
    assert answer.events[0].who in {"client", "server"}


@pytest.mark.parametrize(
    ("flags", "cause"),
    [(["RA"], "port-closed"), ([], "no-answer-at-all")],
)
def test_connections_that_never_were(flags: list[str], cause: str, tmp_path: Path) -> None:
    """A SYN that is answered by a reset, and one that nothing answers."""
    there = Ether() / IP(src="10.0.0.1", dst="10.0.0.2")
    back = Ether() / IP(src="10.0.0.2", dst="10.0.0.1")
    packets = [there / TCP(sport=40000, dport=5672, flags="S", seq=1)]
    packets += [back / TCP(sport=5672, dport=40000, flags=flag, ack=2) for flag in flags]
    for number, packet in enumerate(packets):
        packet.time = START_S + number / 1000
    wrpcap(str(tmp_path / "x.pcap"), packets)
    assert main(["decode", str(tmp_path / "x.pcap"), "--output", str(tmp_path / "tables"), "-q"]) == 0
    (answer,) = explaining.explain(str(tmp_path / "tables"))
    assert answer.cause == cause
    assert "10.0.0.2:5672" in str(answer)


@pytest.mark.parametrize(
    "subject", ["nosuch", "x'; DROP VIEW frames; --", "9" * 30, "1/2", "\x1b[31m", "getvariable('a')"]
)
def test_unknown_subjects_are_one_line(subject: str, tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", subject, tables]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "no connection" in printed
    assert "\x1b" not in printed


def test_a_misspelt_name_is_corrected(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "client_01.py", tables]) == 2
    assert "did you mean 'client_010.py'" in capsys.readouterr().err


def test_every_cause_can_be_written(session: Session) -> None:
    """Each text names columns that there are, also where all of them are null."""
    for kind, query in (("queue", "queue.sql"), ("message", "message.sql")):
        session.execute("SET VARIABLE subject = 'x'")
        (columns, _), *_ = list(session.run(explaining._text(query)))
        check(kind, dict.fromkeys(columns))
    explaining._ask(session, "true")
    (columns, _), *_ = list(session.run("SELECT * FROM facts"))
    check("causes", dict.fromkeys(columns) | {"client_quiet_ns": 1, "server_quiet_ns": 2})


def check(kind: str, row: dict[str, object]) -> None:
    for cause in explaining.causes(kind):
        instead = [cause.instead["text"]] if cause.instead else []
        for text in (cause.answer, *cause.advice, *instead):
            assert "{" not in filled(text, row), cause.id


def test_a_client_that_left_in_a_quiet_moment_is_no_answer_without_a_subject(tmp_path: Path) -> None:
    """Its FIN comes five seconds after its last frame (tshark); it had settled all deliveries."""
    capture, tables = golden.CAPTURES / "10_rabbitmq_settle_modes.pcap", str(tmp_path / "tables")
    assert main(["decode", str(capture), "--output", tables, "-q"]) == 0
    with connect(tables) as session:
        assert "client-left" not in {each.cause for each in explaining.explain(session)}
        assert "client-left" in {each.cause for each in explaining.explain(session, "127.0.0.1:59172")}


def test_a_close_whose_reason_was_not_captured_is_not_explained(tmp_path: Path) -> None:
    """connection.close with code 320, of which the capture has the code, but not the text."""
    capture, cut = golden.CAPTURES / "091_close_by_broker_and_rst.pcap", str(tmp_path / "cut.pcap")
    with RawPcapReader(str(capture)) as packets, RawPcapWriter(cut, linktype=packets.linktype) as writer:
        writer.write_header(None)
        for data, of in packets:
            writer.write_packet(data[:96], sec=of.sec, usec=of.usec, caplen=min(96, len(data)), wirelen=of.wirelen)
    assert main(["decode", cut, "--output", str(tmp_path / "tables"), "-q"]) == 0
    with connect(str(tmp_path / "tables")) as session:
        causes = {each.cause for each in explaining.explain(session, "127.0.0.1:5672")}
    assert "close-reason-missing" in causes
    assert "forced" not in causes


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_ladder_shows_the_frames_of_the_answer(kind: str, tables: str, tmp_path: Path) -> None:
    """tshark: packet 9 of the capture is the connection.close with reply code 403."""
    picture = tmp_path / f"why.{kind}"
    assert main(["explain", "127.0.0.1:37642", tables, "--ladder", str(picture)]) == 0
    text = picture.read_text()
    assert all(word in text for word in ("connection.start-ok", "connection.close 403", "127.0.0.1:37642"))


def test_a_ladder_of_a_long_connection_says_that_frames_are_left_out(session: Session) -> None:
    (row,) = session.rows("SELECT connection_id, count(*) AS n FROM frames GROUP BY 1 ORDER BY n DESC LIMIT 1")
    (answer,) = explaining.explain(session, str(row["connection_id"]))
    drawn = json.dumps(plots.ladder_of(session, answer).to_dict())
    assert "frames that are not shown" in drawn
    assert f" of {row['n']} frames shown: the first ones, and those around the proof" in drawn


def test_a_ladder_needs_a_connection_and_a_kind_of_picture(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "127.0.0.1:37642", tables, "--ladder", "why.txt"]) == 2
    assert "expected a name that ends in .svg or .html" in capsys.readouterr().err
