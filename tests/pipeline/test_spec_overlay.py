"""What the overlay adds to the fact tables, entry by entry, against the tables of each version."""

from __future__ import annotations

import json
import struct
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from classic_frames import body, header, method, protocol_header
from classic_support import fact_table
from decoding import decode_table, in_flow_order, runs
from wire import CLIENT, SERVER, Wire, write_capture

from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import method_name, methods
from pipeline.tables.decoding import config
from udfs.conversation.frame_batch import FrameBatch
from udfs.tables.conversation import Conversation

every_version = pytest.mark.parametrize("version", CLASSIC_VERSIONS)
VERSIONS = (*CLASSIC_VERSIONS, "0-10", "1.0")
Described = dict[str, Any]


@cache
def overlay() -> Described:
    found: Described = json.loads(resources.files("codec.protocol.spec").joinpath("overlay.json").read_text("utf-8"))
    return found


@cache
def described(version: str) -> dict[str, tuple[tuple[int, ...], list[Described]]]:
    """Methods, controls, commands, performatives of a version: by name, their numbers and fields."""
    table = fact_table(version)
    if version in CLASSIC_VERSIONS:
        return {
            f"{c['name']}.{m['name']}": (
                (c["index"], m["index"]), [*m["fields"], *m.get("optional_trailing_fields", [])]
            )
            for c in table["classes"] for m in c["methods"]
        }  # fmt: skip
    if version == "0-10":
        kinds = ("controls", "commands")
        return {
            f"{c['name']}.{m['name']}": ((int(c["code"]), int(m["code"])), m["fields"])
            for c in table["classes"] for kind in kinds for m in c.get(kind, [])
        }  # fmt: skip
    return {t["name"]: ((), t["fields"]) for t in table["composite_types"]}


def entries(part: str) -> dict[str, Any]:
    return {name: value for name, value in overlay()[part].items() if name != "about"}


@every_version
def test_a_method_of_a_version_keeps_its_own_number(version: str) -> None:
    """Whatever extensions add: each method that the version's own document describes is found under its own number."""
    for name, (numbers, its_fields) in described(version).items():
        assert method_name(version, *numbers) == name
        (found,) = (m for m in methods(version) if (m.class_id, m.method_id) == numbers)
        assert [field.name for field in found.fields] == [field["name"] for field in its_fields]


@pytest.mark.parametrize("version", entries("extra_methods"))
def test_extra_methods_have_numbers_that_the_version_leaves_free(version: str) -> None:
    extra = overlay()["extra_methods"][version]
    own = {numbers: name for name, (numbers, _) in described(version).items()}
    for name in extra["methods"]:
        numbers, its_fields = described(extra["from"])[name]
        assert numbers not in own, f"{version} has {own.get(numbers)} under the number of {name}"
        assert method_name(version, *numbers) == name
        (found,) = (m for m in methods(version) if (m.class_id, m.method_id) == numbers)
        assert [field.name for field in found.fields] == [field["name"] for field in its_fields]


def test_senders_are_those_of_the_extensions_of_0_9_1() -> None:
    extended = {
        f"{of_class['name']}.{each['name']}": each["sent_by_extension"]["sent_by"]
        for of_class in fact_table("0-9-1")["classes"]
        for each in of_class["methods"]
        if "sent_by_extension" in each
    }
    assert entries("sent_by") == {"0-9": extended}
    for name, sent_by in extended.items():
        assert {each.sent_by for each in methods("0-9") if each.name == name} == {sent_by}
        assert [each.sent_by for each in methods("0-8") if each.name == name] != [sent_by]


def test_replies_are_methods_of_their_version() -> None:
    for version, pairs in entries("replies").items():
        for request, reply in pairs.items():
            assert request in described(version)
            assert reply in described(version)
            assert reply == f"{request}-ok"


def test_credentials_are_fields_of_some_version() -> None:
    for name, secrets in entries("credentials").items():
        tables = [described(version)[name][1] for version in VERSIONS if name in described(version)]
        assert tables, name
        for secret, how in secrets.items():
            holding = [[field["name"] for field in of_version] for of_version in tables]
            holding = [names for names in holding if secret in names]
            assert holding, f"no version has {secret} in {name}"
            for names in holding if how.get("user_from", "shape") != "shape" else ():
                assert names[names.index(secret) - 1] == how["user_from"]


def test_reserved_fields_in_use_are_reserved_in_the_specification() -> None:
    for name, entry in entries("reserved_in_use").items():
        reserved = {field["name"] for field in described("0-9-1")[name][1] if field.get("reserved")}
        assert set(entry["fields"]) <= reserved


def test_renamed_keys_occur() -> None:
    names = {field["name"] for version in CLASSIC_VERSIONS for _, its in described(version).values() for field in its}
    assert set(entries("key_names")) <= names


# ---- basic.recover, whose number differs ----------------------------------------------------------------------------


def recovering(version: str, class_and_method: tuple[int, int], syn: bool = True) -> Wire:
    """A consumer gets two messages, acknowledges the first, and asks for all others again."""
    wire = Wire(syn)
    start = {"0-8": {"version_major": 8, "version_minor": 0}}.get(version, {"version_major": 0, "version_minor": 9})
    wire.add(CLIENT, protocol_header(version))
    wire.add(SERVER, method(version, "connection.start", 0, **start))
    wire.add(CLIENT, method(version, "channel.open"))
    wire.add(SERVER, method(version, "channel.open-ok"))
    wire.add(CLIENT, method(version, "basic.consume", queue="q", consumer_tag="c"))
    wire.add(SERVER, method(version, "basic.consume-ok", consumer_tag="c"))
    for tag in (1, 2):
        delivered = method(version, "basic.deliver", consumer_tag="c", delivery_tag=tag, routing_key="q")
        wire.add(SERVER, delivered + header(version, "basic", 1) + body(b"x"))
    wire.add(CLIENT, method(version, "basic.ack", delivery_tag=1))
    wire.add(CLIENT, struct.pack(">BHIHHB", 1, 1, 5, *class_and_method, 1) + b"\xce")  # the bit requeue
    return wire


@pytest.mark.parametrize(
    ("version", "number", "name"),
    [
        ("0-8", 100, "basic.recover"), ("0-8", 110, "basic.recover-sync"),
        ("0-9", 100, "basic.recover"), ("0-9", 102, "basic.recover-sync"),
        ("0-9", 110, "basic.recover"),  # RabbitMQ, which answers a 0-9 header with 0-9-1
        ("0-9-1", 100, "basic.recover-async"), ("0-9-1", 110, "basic.recover"),
    ],
)  # fmt: skip
def test_recover_is_known_by_its_number_and_puts_back_what_is_open(
    version: str, number: int, name: str, tmp_path: Path
) -> None:
    """0-8 and 0-9 documents: recover is 60, 100; Qpid's recover-sync of 0-9 is 102, RabbitMQ's of 0-8 110; 0-9-1:
    recover-async 100, recover 110."""
    write_capture(tmp_path / "a.pcap", [recovering(version, (60, number))])
    rows = decode_table(in_flow_order(runs([tmp_path / "a.pcap"])))
    frames = rows.filter(pa.compute.equal(rows["kind"], "frame")).sort_by("frame_no")
    last = frames.slice(frames.num_rows - 1).to_pylist()[0]
    assert (last["name"], last["status"], last["version"]) == (name, "ok", version)
    assert [row["outcome"] for row in messages(frames)] == ["acked", "requeued"]


def messages(frames: pa.Table) -> list[dict[str, Any]]:
    """Rows of table messages of one connection."""
    conversation, found = Conversation(config()), []
    (batch,) = frames.combine_chunks().to_batches()
    for parts in (conversation.feed(FrameBatch(batch)), conversation.finish()):
        found += [rows for table, rows in parts if table == "messages"]
    plain = [row for rows in found for row in rows.select(["first_frame_no", "outcome"]).to_pylist()]
    return sorted(plain, key=lambda row: row["first_frame_no"])
