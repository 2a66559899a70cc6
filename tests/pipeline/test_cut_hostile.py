"""Captures and tables that make a cut costly, and captures that change while they are cut."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pika.spec
import pytest
from cut_support import CAPTURES, Tables, cut, tables_of
from pika_frames import method
from wire import CLIENT, SERVER, Wire, write_capture

from pipeline.extract import CapturesError, Choice, CutOptions, cutting
from pipeline.extract import survey as surveys

BARE = CAPTURES / "091_confirms_and_return.pcap"
HEADER = b"AMQP\0\0\x09\x01"
HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
SECURE_OK = method(pika.spec.Connection.SecureOk("a response"))


@pytest.fixture(scope="module")
def bare() -> Tables:
    return tables_of([BARE])


def cut_after(change: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch, **how: Any) -> bytes:
    """A cut of all connections, before whose second pass over the captures something changes."""
    survey = surveys.survey

    def surveyed(*arguments: Any) -> Any:
        found = survey(*arguments)
        change()
        return found

    monkeypatch.setattr(cutting, "survey", surveyed)
    sink = io.BytesIO()
    cutting.cut_rows(tables, Choice(set(tables.ids)), sink, CutOptions(**how))
    return sink.getvalue()


@pytest.mark.parametrize("how", [{}, {"redact": True}])
@pytest.mark.parametrize("change", ["replaced", "shortened", "one byte"])
def test_a_capture_that_changes_while_it_is_cut_is_refused(
    change: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring buffer may be written over: what is blanked in a packet says nothing about another one."""
    capture = tmp_path / "ring.pcap"
    content = BARE.read_bytes()
    capture.write_bytes(content)
    tables = tables_of([capture])
    other = {
        "replaced": (CAPTURES / "091_declare_publish_consume_ack.pcap").read_bytes(),
        "shortened": content[: len(content) // 2],
        "one byte": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    }[change]
    with pytest.raises(CapturesError, match=r"ring\.pcap: changed while it was read"):
        cut_after(lambda: capture.write_bytes(other), tables, monkeypatch, **how)


def test_a_capture_that_grows_while_it_is_cut_is_cut(
    bare: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "growing.pcap"
    capture.write_bytes(BARE.read_bytes())
    tables = tables_of([capture])
    more = BARE.read_bytes()[24:]  # without the header of the file
    with capture.open("ab", buffering=0) as file:
        grown = cut_after(lambda: file.write(more), tables, monkeypatch, redact=True)
    monkeypatch.undo()
    cut(bare, Choice(set(bare.ids)), tmp_path / "cut.pcapng", redact=True)
    assert grown == (tmp_path / "cut.pcapng").read_bytes()


def test_a_login_in_two_far_packets_costs_no_memory_for_what_is_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own two packets are retained, and none of the packets of other connections and directions between them."""
    wire = Wire()
    wire.add(CLIENT, HEADER + SECURE_OK[:9])
    for _ in range(200):
        wire.add(SERVER, HEARTBEAT)
    wire.add(CLIENT, SECURE_OK[9:])
    write_capture(tmp_path / "slow.pcap", [wire])
    tables = tables_of([tmp_path / "slow.pcap"])
    retained = []
    survey = surveys.survey

    def surveyed(*arguments: Any) -> Any:
        retained.append(survey(*arguments))
        return retained[-1]

    monkeypatch.setattr(cutting, "survey", surveyed)
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    assert sum(map(len, retained[0].payloads.values())) == len(HEADER + SECURE_OK)
    assert b"a response" not in (tmp_path / "cut.pcapng").read_bytes()


def test_logins_beyond_what_is_retained_are_blanked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "SAMPLE_BYTES", 0)
    wire = Wire()
    wire.add(CLIENT, HEADER + SECURE_OK)
    write_capture(tmp_path / "login.pcap", [wire])
    tables = tables_of([tmp_path / "login.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    assert HEADER + SECURE_OK[:7] + b"*" * (len(SECURE_OK) - 7) in (tmp_path / "cut.pcapng").read_bytes()
