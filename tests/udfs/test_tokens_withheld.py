"""A token that a 1.0 client hands over in a message is in no table, also not with payloads."""

from __future__ import annotations

from typing import Any

import encode_1_0 as encode
import fuzz_tables
import pieces
import pytest
from wire import CLIENT, FLOW, SERVER, Wire

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJyYWJiaXRtcSJ9." + "c2lnbmF0dXJl" * 20
ORDINARY = b"an ordinary body"


def message(body: bytes, properties: tuple[Any, ...] = (), application: dict[str, Any] | None = None) -> bytes:
    about = encode.encoded(encode.described(0x73, *properties)) if properties else b""
    return about + (encode.section(0x74, application) if application else b"") + body


VALUE, DATA = encode.section(0x77, TOKEN), encode.data_section(TOKEN.encode())
PUT = {"operation": "put-token", "type": "jwt", "name": "amqp://broker/orders"}
# Address of the link, and the message: Azure's; OASIS's; RabbitMQ's, whose client writes the body as binary data; a
# link that is not known.
MESSAGES = {
    "put-token": ("$cbs", message(VALUE, ("1", None, None, None, "reply"), PUT)),
    "a path before the node": ("broker/$cbs", message(VALUE)),
    "set-token": ("$cbs", message(encode.section(0x77, TOKEN.encode()), ("1", None, "$cbs", "set-token"))),
    "nothing but a body": ("$cbs", message(DATA)),
    "PUT /auth/tokens": ("/management", message(DATA, ("1", None, "/auth/tokens", "PUT", "$me"))),
    "PUT /auth/tokens, the token as a value": (
        "/management",
        message(VALUE, ("1", None, "/auth/tokens", "PUT", "$me")),
    ),
    "put-token elsewhere": ("other", message(VALUE, (), PUT)),
}


def attach(name: str, handle: int, address: str, role: bool = False) -> bytes:
    target = encode.described(encode.TARGET, address)
    source = encode.described(encode.SOURCE, "me")
    return encode.performative_frame(
        encode.ATTACH, 0, name=name, handle=handle, role=role, source=source, target=target, initial_delivery_count=0
    )


def transfer(handle: int, number: int, payload: bytes, parts: int = 1) -> list[bytes]:
    size = -(-len(payload) // parts)
    found = []
    for at in range(0, len(payload), size):
        given: dict[str, Any] = {"handle": handle, "more": at + size < len(payload)}
        if at == 0:
            given |= {"delivery_id": number, "delivery_tag": b"t%d" % number, "settled": True}
        found.append(encode.performative_frame(encode.TRANSFER, 0, payload[at : at + size], **given))
    return found


def conversation(address: str, payload: bytes, parts: int = 1, with_attach: bool = True) -> Wire:
    wire = Wire(syn=with_attach)
    if with_attach:
        wire.add(CLIENT, b"AMQP\x00\x01\x00\x00")
        wire.add(SERVER, b"AMQP\x00\x01\x00\x00")
        wire.add(CLIENT, encode.frame(encode.performative(encode.OPEN, "me", "broker")))
        begin = encode.performative_frame(encode.BEGIN, 0, next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        wire.add(CLIENT, begin)
        wire.add(CLIENT, attach("ordinary", 1, "orders"))
        wire.add(CLIENT, attach("tokens", 0, address))
    ordinary = transfer(1, 0, message(encode.data_section(ORDINARY)))
    for frame in (*ordinary, *transfer(0, 1, payload, parts), *transfer(1, 2, message(encode.data_section(ORDINARY)))):
        wire.add(CLIENT, frame)
    return wire


def payloads(wires: list[Wire], payload: bool = True) -> tuple[bytes, list[Any]]:
    rows = fuzz_tables.tables([[(FLOW, *wire.arrays())] for wire in wires], payload=payload)
    fuzz_tables.check(rows)
    texts = [fuzz_tables.bytes_of(column) for batches in rows.values() for each in batches for column in each.columns]
    bodies = fuzz_tables.table_of(rows, "messages", "body")["body"].to_pylist()
    return b"\n".join(texts), bodies


@pytest.mark.parametrize("name", MESSAGES)
def test_a_token_is_withheld_and_other_bodies_are_not(name: str) -> None:
    address, payload = MESSAGES[name]
    text, bodies = payloads([conversation(address, payload)])
    assert TOKEN.encode()[:40] not in text
    assert TOKEN.encode()[-40:] not in text
    assert bodies == [encode.data_section(ORDINARY), None, encode.data_section(ORDINARY)]


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_a_token_in_several_transfers_is_withheld(parts: int) -> None:
    wires = [conversation(address, payload, parts) for address, payload in MESSAGES.values()]
    text, _ = payloads(wires)
    assert [at for at in range(0, len(TOKEN), 20) if TOKEN.encode()[at : at + 20] in text] == []
    assert text.count(ORDINARY) >= 2 * len(wires)


def test_a_token_is_known_by_its_message_where_the_attach_is_not() -> None:
    marked = [each for name, each in MESSAGES.items() if name in ("put-token", "set-token", "PUT /auth/tokens")]
    text, _ = payloads([conversation(address, payload, with_attach=False) for address, payload in marked])
    assert TOKEN.encode()[:40] not in text
    assert ORDINARY in text


def test_after_a_detach_the_handle_is_an_ordinary_one() -> None:
    wire = conversation("$cbs", MESSAGES["put-token"][1])
    wire.add(CLIENT, encode.performative_frame(encode.DETACH, 0, handle=0, closed=True))
    wire.add(CLIENT, attach("next", 0, "orders"))
    for frame in transfer(0, 3, message(encode.data_section(b"after"))):
        wire.add(CLIENT, frame)
    text, bodies = payloads([wire])
    assert bodies[-1] == encode.data_section(b"after")
    assert TOKEN.encode()[:40] not in text


def test_with_two_links_to_the_node_no_payload_of_that_side_is_kept() -> None:
    wire = conversation("$cbs", MESSAGES["nothing but a body"][1])
    wire.add(CLIENT, attach("more tokens", 2, "$cbs"))
    for frame in (*transfer(0, 3, message(DATA)), *transfer(2, 4, message(DATA))):
        wire.add(CLIENT, frame)
    text, _ = payloads([wire])
    assert TOKEN.encode()[:40] not in text
    assert text.count(ORDINARY) >= 2


@pytest.mark.parametrize("name", ["put-token", "nothing but a body", "PUT /auth/tokens"])
def test_pieces_withhold_the_same(name: str) -> None:
    address, payload = MESSAGES[name]
    runs = fuzz_tables.in_one_table([[(FLOW, *conversation(address, payload, 4).arrays())]])
    whole, cuts = pieces.rows_of(runs), pieces.times(runs)
    for cut in cuts[5:]:
        pieces.same(pieces.in_pieces(runs, [cut]), whole, f"cut at {cut}")
    assert TOKEN[:40] not in repr(whole)


def test_without_payloads_no_token_is_among_the_properties() -> None:
    text, bodies = payloads([conversation(address, payload) for address, payload in MESSAGES.values()], payload=False)
    assert TOKEN.encode()[:40] not in text
    assert set(bodies) == {None}
