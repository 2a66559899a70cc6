"""The state of a connection has what is outstanding, not what has been: it does not grow with a conversation that comes
back to where it was, again and again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import classic_frames as classic
import encode_1_0 as P
import link_connections as links
import pyarrow.compute as pc
import pytest
from decoding import decode_table, in_flow_order, runs
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, content, frame, header, one_frame, segment
from encode_1_0 import described, section
from link_connections import uint
from pieces import BEGINNING, Lake, Rows, in_pieces, piece, rows_of, same, times
from rule_connections import done_0_10, opened_1_0, send_0_10, session_0_10
from rule_support import Case, Connection, write_cases
from test_conversation import followed

from codec.compiler.limits import LIMITS
from codec.framing.connection_state import restore_states
from codec.packing import Reader, unseal
from pipeline.tables.decoding import config
from udfs.conversation import sessions
from udfs.tables import Tables, conversation
from udfs.tables.saved_states import LAYOUT, layout_digest

ROUNDS = 10
DIGITS = 8  # bytes that the numbers of later rounds may take more, in names
COORDINATES = described(P.COORDINATOR)
ENDS = FIRST_FRAME | LAST_FRAME
Round = Callable[[Connection, int], object]
# Bytes for a channel number that was used. A key and a value, 8 bytes each: how many sessions it had; in 1.0 the
# number that it answered last. In 0-10 the decoder counts the commands of each channel (96 bytes). And when each number
# was closed last (32 bytes), in 1.0 by both sides: what was asked for before needs no answer. For oddities, a key and a
# value each: the session of which a number was the last one, in 1.0 of each side; in 0-10 also when it was detached.
OF_NUMBERS = {"channel numbers of 1.0": 2 * (16 + 32 + 16), "channel numbers of 0-10": 16 + 96 + 32 + 2 * 16}


# ---- 1.0 -------------------------------------------------------------------------------------------------------------


def with_coordinator() -> Connection:
    """Links of the client: to a coordinator, handle 0; to a queue, handle 1; from a queue, handle 2."""
    connection = links.begun()
    for side in ("client", "server"):
        links.attach(connection, side, "tx", 0, side == "server", target=COORDINATES)
        links.attach(connection, side, "s", 1, side == "server")
        links.attach(connection, side, "r", 2, side == "client")
    for side, handle in (("server", 0), ("server", 1), ("client", 2)):
        links.flow(connection, side, handle, 1000)
    return connection


def command(connection: Connection, number: int, what: Any) -> Connection:
    """A declare or discharge over the control link."""
    return links.transfer(connection, "client", 0, number, payload=section(P.VALUE, what))


def declare(connection: Connection, number: int, name: bytes) -> Connection:
    return links.dispose(
        command(connection, number, described(P.DECLARE)), "server", True, number, None, True, declared(name)
    )


def declared(name: bytes) -> Any:
    return described(P.DECLARED, name)


def discharge(connection: Connection, number: int, name: bytes, fail: bool = False) -> Connection:
    return links.accepted(command(connection, number, described(P.DISCHARGE, name, fail)), "server", True, number)


def inside(name: bytes, *outcome: int) -> Any:
    return described(P.TRANSACTIONAL, name, *(described(code) for code in outcome))


def publish(connection: Connection, number: int, name: bytes) -> Connection:
    return links.transfer(connection, "client", 1, number, state=inside(name))


def transaction(connection: Connection, number: int) -> None:
    """A publish and an acknowledgement in a transaction, which is committed."""
    name, first = number.to_bytes(4, "big"), 3 * number
    publish(declare(connection, first, name), first + 1, name)
    links.dispose(connection, "server", True, first + 1, None, True, inside(name, P.ACCEPTED))
    links.transfer(connection, "server", 2, number)
    links.dispose(connection, "client", True, number, None, True, inside(name, P.ACCEPTED))
    discharge(connection, first + 2, name)


def settled(connection: Connection, number: int) -> None:
    links.accepted(links.transfer(connection, "client", 0, number), "server", True, number)


def attached(connection: Connection, number: int) -> None:
    """A link with a name of its own comes and goes."""
    for side in ("client", "server"):
        links.attach(connection, side, f"link {number}", 5, side == "server")
    links.detach(links.detach(connection, "client", 5), "server", 5)


def session(connection: Connection, number: int) -> None:
    """A session with a link comes and goes."""
    attached(links.begin(links.begin(connection, "client"), "server", links.CHANNEL), 0)
    links.end(links.end(connection, "client"), "server")


def numbered_session(connection: Connection, number: int) -> None:
    """A session of a channel number of its own, which the server answers with another one, comes and goes."""
    own, other = 2 * number + 2, 2 * number + 3
    links.begin(links.begin(connection, "client", channel=own), "server", own, channel=other)
    links.say(links.say(connection, "client", P.END, channel=own), "server", P.END, channel=other)


def resumed(connection: Connection, number: int) -> None:
    """A delivery of a link is resumed, as settled, by its next attach; then its tag is that of one that is settled."""
    turns: list[dict[str, Any]] = [{}, {"resume": True, "settled": True}, {"settled": True}]
    for turn, given in enumerate(turns):
        for side in ("client", "server"):
            links.attach(
                connection, side, "l", 5, side == "server", unsettled={b"tag": described(P.ACCEPTED)} if turn else None
            )
        links.transfer(connection, "client", 5, 3 * number + turn, b"tag", **given)
        links.detach(links.detach(connection, "client", 5, closed=False), "server", 5, closed=False)


# ---- 0-10 ------------------------------------------------------------------------------------------------------------


def transfer_0_10(destination: str) -> bytes:
    """A message.transfer with its header and a body of one byte."""
    method = segment("message.transfer", {"destination": destination, "accept-mode": 0, "acquire-mode": 0})
    return b"".join(content(method, header(("message.message-properties", {"content-length": 1}))))


def in_mode_tx() -> Connection:
    return done_0_10(send_0_10(session_0_10(), "client", "tx.select"), 0)


def transaction_0_10(connection: Connection, number: int) -> None:
    connection.client_bytes(transfer_0_10("amq.direct"))
    done_0_10(send_0_10(connection, "client", "tx.commit"), 2 * number + 2)


def in_mode_dtx() -> Connection:
    return done_0_10(send_0_10(session_0_10(), "client", "dtx.select"), 0)


def branch(name: bytes) -> dict[str, Any]:
    return {"xid": {"format": 0, "global-id": name, "branch-id": b""}}


def publish_on(connection: Connection, name: bytes) -> Connection:
    """Three commands."""
    send_0_10(connection, "client", "dtx.start", **branch(name)).client_bytes(transfer_0_10("amq.direct"))
    return send_0_10(connection, "client", "dtx.end", **branch(name))


def reported(connection: Connection, number: int, status: int) -> Connection:
    """The result of command `number`."""
    return send_0_10(
        connection, "server", "execution.result", command_id=number, value=("dtx.xa-result", {"status": status})
    )


def distributed(connection: Connection, number: int) -> None:
    """A transaction on a branch of its own is committed, or rolled back."""
    name, last = b"%06d" % number, 4 * number + 4
    send_0_10(publish_on(connection, name), "client", ("dtx.commit", "dtx.rollback")[number % 2], **branch(name))
    done_0_10(reported(connection, last, 0), last)


def publish_0_10(connection: Connection, number: int) -> None:
    done_0_10(connection.client_bytes(transfer_0_10("amq.direct")), number)


def subscribed() -> Connection:
    connection = session_0_10()
    send_0_10(connection, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    for unit in (0, 1):
        send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=1000)
    return done_0_10(connection, 2)


def deliver_0_10(connection: Connection, number: int) -> None:
    """A transfer that the client completes after the next one."""
    connection.server_bytes(transfer_0_10("d"))
    if number:
        send_0_10(connection, "client", "message.accept", transfers=[(number - 1, number - 1)])
        send_0_10(connection, "client", "session.completed", commands=[(0, number - 1)])


def session_of_0_10(connection: Connection, number: int) -> None:
    """A session of another channel, with a subscription and an open transaction, comes and goes."""
    for sender, name in (("client", "session.attach"), ("server", "session.attached")):
        connection.data(sender, one_frame(name, {"name": b"again"}, 2))
    connection.data("client", one_frame("session.command-point", {"command-id": 0, "command-offset": 0}, 2))
    connection.data("client", one_frame("message.subscribe", {"queue": "q", "destination": "d"}, 2))
    connection.data("client", one_frame("tx.select", {}, 2) + one_frame("message.accept", {"transfers": [(0, 0)]}, 2))
    connection.data("client", one_frame("session.detach", {"name": b"again"}, 2))
    connection.data("server", one_frame("session.detached", {"name": b"again", "code": 0}, 2))


def numbered_session_of_0_10(connection: Connection, number: int) -> None:
    """A session of a channel number of its own comes and goes."""
    for sender, name in (
        ("client", "session.attach"), ("server", "session.attached"),
        ("client", "session.detach"), ("server", "session.detached"),
    ):  # fmt: skip
        fields = {"name": b"one", **({"code": 0} if name == "session.detached" else {})}
        connection.data(sender, one_frame(name, fields, number + 2))


def subscription(connection: Connection, number: int) -> None:
    """A subscription with a destination of its own comes and goes while a transfer is on its way."""
    name = f"d {number}"
    send_0_10(connection, "client", "message.subscribe", queue="q", destination=name, accept_mode=0, acquire_mode=0)
    for unit in (0, 1):
        send_0_10(connection, "client", "message.flow", destination=name, unit=unit, value=1000)
    connection.server_bytes(transfer_0_10(name))
    send_0_10(connection, "client", "message.cancel", destination=name)
    connection.server_bytes(transfer_0_10(name))
    send_0_10(connection, "client", "message.accept", transfers=[(2 * number, 2 * number + 1)])
    done_0_10(connection, 5 * number + 4)
    send_0_10(connection, "client", "session.completed", commands=[(0, 2 * number + 1)])


def query(connection: Connection, number: int) -> None:
    send_0_10(connection, "client", "queue.query", queue="q")
    result = ("queue.queue-query-result", {"queue": "q"})
    done_0_10(send_0_10(connection, "server", "execution.result", command_id=number, value=result), number)


# ---- 0-9-1 -----------------------------------------------------------------------------------------------------------


def deliver(connection: Connection, number: int) -> None:
    connection.deliver(number + 1).client("basic.ack", delivery_tag=number + 1)


def transacted(connection: Connection, number: int) -> None:
    connection.publish()
    deliver(connection, number)
    connection.asks("tx.commit")


def consumed() -> Connection:
    return Connection().handshake().open(1).consume()


def consumers(connection: Connection, number: int) -> None:
    """Consumers with tags of their own come and go, cancelled by the client, with and without an answer, and by the
    server; the client cancels that one, too."""
    tags = [f"{how} {number}" for how in ("answered", "unanswered", "by the server")]
    for tag in tags:
        connection.asks("basic.consume", reply={"consumer_tag": tag}, queue="q", consumer_tag=tag, no_ack=True)
    connection.deliver(number + 1, consumer_tag=tags[0])
    connection.asks("basic.cancel", reply={"consumer_tag": tags[0]}, consumer_tag=tags[0])
    connection.client("basic.cancel", consumer_tag=tags[1], no_wait=True)
    connection.server("basic.cancel", consumer_tag=tags[2], no_wait=True)
    connection.asks("basic.cancel", reply={"consumer_tag": tags[2]}, consumer_tag=tags[2])


def queues(connection: Connection, number: int) -> None:
    """A queue with a type is declared and deleted, and one that the server names is read for a while."""
    own, named, tag = f"own {number}", f"amq.gen-{number}", f"of {number}"
    quorum = {"x-queue-type": "quorum"}
    connection.asks("queue.declare", reply={"queue": own}, queue=own, arguments=quorum)
    connection.asks("queue.delete", queue=own).client("queue.declare", queue=own, no_wait=True, arguments=quorum)
    connection.client("queue.delete", queue=own, no_wait=True)
    connection.asks("queue.declare", reply={"queue": named}, queue="", exclusive=True)
    connection.asks("basic.consume", reply={"consumer_tag": tag}, queue="", consumer_tag=tag, no_ack=True)
    connection.asks("basic.cancel", reply={"consumer_tag": tag}, consumer_tag=tag)


def channel(connection: Connection, number: int) -> None:
    """A channel with a consumer comes and goes."""
    connection.asks("channel.open", 2)
    tag = f"c {number}"
    connection.asks("basic.consume", 2, {"consumer_tag": tag}, queue="q", consumer_tag=tag)
    connection.asks("channel.close", 2, reply_code=200, reply_text="bye")


CONVERSATIONS: dict[str, tuple[Callable[[], Connection], Round]] = {
    "transactions of 1.0": (with_coordinator, transaction),
    "links of 1.0": (links.begun, attached),
    "resumed deliveries of 1.0": (links.begun, resumed),
    "sessions of 1.0": (lambda: opened_1_0(Connection("1.0")), session),
    "channel numbers of 1.0": (lambda: opened_1_0(Connection("1.0")), numbered_session),
    "publishes of 1.0": (links.sender_link, settled),
    "transactions of 0-10": (in_mode_tx, transaction_0_10),
    "distributed transactions of 0-10": (in_mode_dtx, distributed),
    "publishes of 0-10": (session_0_10, publish_0_10),
    "deliveries of 0-10": (subscribed, deliver_0_10),
    "subscriptions of 0-10": (session_0_10, subscription),
    "sessions of 0-10": (session_0_10, session_of_0_10),
    "channel numbers of 0-10": (session_0_10, numbered_session_of_0_10),
    "results of 0-10": (session_0_10, query),
    "deliveries of 0-9-1": (consumed, deliver),
    "consumers of 0-9-1": (consumed, consumers),
    "queues of 0-9-1": (consumed, queues),
    "channels of 0-9-1": (consumed, channel),
    "transactions of 0-9-1": (lambda: consumed().asks("tx.select"), transacted),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_state_does_not_grow_with_ended_channels_and_links(name: str, tmp_path: Path) -> None:
    begin, go_on = CONVERSATIONS[name]
    connection, marks = begin(), list[int]()
    for number in range(3 * ROUNDS):
        go_on(connection, number)
        if (number + 1) % ROUNDS == 0:
            marks.append(connection.now)
    table = runs_of(connection, tmp_path)
    lake, sizes = Lake(), list[int]()
    for first, end in pairwise([BEGINNING, *marks]):
        lake.add(piece(table, first, end))
        sizes.append(state_size(lake))
    assert sizes[2] - sizes[1] <= DIGITS + ROUNDS * OF_NUMBERS.get(name, 0), sizes


def runs_of(connection: Connection, folder: Path) -> Any:
    write_cases(folder / "a.pcap", [Case("", connection.version, connection, [])])
    return in_flow_order(runs([folder / "a.pcap"])).combine_chunks()


def state_size(lake: Lake) -> int:
    """How many bytes the only state has without the captured bytes that are compared with late copies: those are
    limited by themselves."""
    (data,) = lake.states.values()
    reader = Reader([unseal(data, LAYOUT, layout_digest(Tables(config(payload=True)).schemas))])
    (state,) = restore_states(reader)
    size: int = len(reader._heap) - int(reader._at[0])
    return size + sum(array.nbytes for name, array in state.arrays.items() if name[:-1] not in ("bytes", "marks"))


# ---- in pieces -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found_in_pieces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """The rows of each conversation in IN_PIECES: those of one decode, although there is a cut behind every packet. One
    capture has them all, because a piece takes as long with one connection as with several."""
    path = tmp_path_factory.mktemp("pieces") / "a.pcap"
    connections = {name: begin() for name, begin in IN_PIECES.items()}
    owner = write_cases(path, [Case("", connection.version, connection, []) for connection in connections.values()])
    table = in_flow_order(runs([path])).combine_chunks()
    rows, expected = in_pieces(table, times(table)[1:]), rows_of(table)
    same(rows, expected, "in pieces")
    names, found = list(connections), {name: dict[str, Counter[str]]() for name in connections}
    number_of = {
        values["connection_id"]: names[owner[int(values["client_port"])][0]]
        for values in map(values_of, rows["connections"])
    }
    for kind, counted in rows.items():
        for text, count in counted.items():
            found[number_of[values_of(text)["connection_id"]]].setdefault(kind, Counter())[text] = count
    return found


def values_of(row: str) -> dict[str, str]:
    """The columns of a row as `rows_of` writes it."""
    return dict(part.partition("=")[::2] for part in row.split(" ") if "=" in part)


# ---- transactions in pieces ------------------------------------------------------------------------------------------


def entangled() -> Connection:
    """Transactions at the same time, rolled back, discharged without a final answer, ended by their links; names that
    are used again."""
    connection = with_coordinator()
    declare(declare(connection, 0, b"a"), 1, b"b")
    publish(publish(publish(connection, 2, b"a"), 3, b"b"), 4, b"a")
    for number, name in ((3, b"b"), (2, b"a"), (4, b"a")):
        links.dispose(connection, "server", True, number, None, True, inside(name, P.ACCEPTED))
    for number in range(4):
        links.transfer(connection, "server", 2, number)
    links.dispose(connection, "client", True, 0, 1, True, inside(b"b", P.ACCEPTED))
    discharge(connection, 5, b"b", fail=True)
    links.accepted(connection, "client", True, 0)
    discharge(connection, 6, b"a")
    declare(connection, 7, b"a")
    links.dispose(publish(connection, 8, b"a"), "server", True, 8, None, True, inside(b"a", P.ACCEPTED))
    links.dispose(connection, "client", True, 1, None, True, inside(b"a", P.ACCEPTED))
    command(connection, 9, described(P.DISCHARGE, b"a", False))
    links.dispose(connection, "server", True, 9, None, False, described(P.ACCEPTED))
    links.dispose(connection, "client", False, 9)
    declare(connection, 10, b"c")
    links.dispose(publish(connection, 11, b"c"), "server", True, 11, None, True, inside(b"c", P.ACCEPTED))
    links.dispose(connection, "client", True, 2, None, True, inside(b"c", P.ACCEPTED))
    links.detach(links.detach(connection, "client", 0), "server", 0)
    return links.transfer(connection, "client", 1, 12)


def test_transactions_in_pieces_end_as_in_one_go(found_in_pieces: dict[str, Rows]) -> None:
    """a commits 2 and 4, b rolls back 3 and two acknowledgements, the second a commits 8, and c ends with its link."""
    found = found_in_pieces["transactions of 1.0"]
    ends = {}
    for text in found["messages"]:
        values = values_of(text)
        ends[values["operation"], int(values["delivery_id"])] = values["outcome"], values["transaction"]
    committed, rolled_back = "'committed'", "'rolled-back'"
    assert ends == {
        ("'publish'", 2): ("'confirmed'", committed),
        ("'publish'", 3): ("'confirmed'", rolled_back),
        ("'publish'", 4): ("'confirmed'", committed),
        ("'publish'", 8): ("'confirmed'", committed),
        ("'publish'", 11): ("'confirmed'", rolled_back),
        ("'publish'", 12): ("'unsettled'", "None"),
        ("'deliver'", 0): ("'acked'", "None"),
        ("'deliver'", 1): ("'acked'", committed),
        ("'deliver'", 2): ("'unsettled'", rolled_back),
        ("'deliver'", 3): ("'unsettled'", "None"),
    }


# ---- sessions and links in pieces ------------------------------------------------------------------------------------


def changing(syn: bool) -> Connection:
    """Names, handles and channels are used again while messages of the links before are outstanding, and where one side
    has not detached yet, or bytes are missing."""
    connection = links.begun(None if syn else Connection("1.0", syn=False))
    for turn in range(3):
        opener, other = ("client", "server") if turn != 1 else ("server", "client")
        for side in (opener, other):
            links.attach(connection, side, "s", turn, side == "server")
            links.attach(connection, side, "r", 7, side == "client")
        links.flow(links.flow(connection, "server", turn), "client", 7)
        links.transfer(links.transfer(connection, "client", turn, turn), "server", 7, turn)
        links.detach(connection, opener, turn, closed=False)
        if turn != 1:
            links.detach(connection, other, turn, closed=False, why=links.error())
        links.detach(links.detach(connection, other, 7), opener, 7)
    links.accepted(connection, "server", True, 0, 1)
    connection.lose("server", 30)
    links.end(links.end(connection, "server", links.error()), "client")
    for channel in (1, 2, 1):
        links.begin(links.begin(connection, "client", channel=channel), "server", channel, channel=5)
        links.say(connection, "client", P.ATTACH, "late", uint(channel), False, channel=channel)
        links.say(connection, "server", P.ATTACH, "late", uint(0), True, channel=5)
        links.say(connection, "client", P.END, channel=channel)
        links.say(connection, "server", P.END, channel=5)
    return connection


@pytest.mark.parametrize("syn", [True, False])
def test_sessions_and_links_in_pieces_are_those_of_one_go(
    syn: bool, found_in_pieces: dict[str, Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the batches are in which one process follows them, too."""
    found = found_in_pieces["sessions and links" if syn else "sessions and links, seen from their middle"]
    assert sum(found["channels"].values()) == 4
    assert sum("name='late'" in text for text in found["links"].elements()) == 3
    decoded = decode_table(runs_of(changing(syn), tmp_path))
    frames = decoded.filter(pc.equal(decoded["kind"], "frame")).drop_columns(["kind"])
    at_once = followed(frames, frames.num_rows)
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    monkeypatch.setattr(sessions, "FEW_SLOTS", 0)
    assert followed(frames, 3) == at_once


def resuming() -> Connection:
    """Deliveries of a link are resumed once it is attached again, twice, as settled or not; a tag is used again for
    messages that are settled, one that is not, and one that resumes what is over, another one for a message that is
    resumed. The first message is accepted under its first number when all is over."""
    connection, tags, numbers = links.begun(), (b"a", b"b", b"c"), iter(range(100))
    for turn in range(4):
        for side in ("client", "server"):
            links.attach(connection, side, "s", turn, side == "server")
        for tag in tags:
            given: dict[str, Any] = {"resume": True, "settled": turn == 2 and tag == b"a"} if turn else {}
            links.transfer(connection, "client", turn, next(numbers), tag, **given)
        for settled in (True, False, True):
            links.transfer(connection, "client", turn, next(numbers), b"again", settled, resume=turn == 3)
        links.transfer(connection, "client", turn, next(numbers), b"new", turn == 2, resume=turn == 2)
        if turn == 1:
            links.accepted(connection, "server", True, 8)  # the second b: 0 to 6, then 7 to 9
        if turn == 3:
            links.dispose(connection, "server", True, 0, None, False, described(P.ACCEPTED))
        links.detach(links.detach(connection, "client", turn, closed=False), "server", turn, closed=False)
    return connection


def test_resumed_deliveries_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    """a is settled in the third turn, and resumed in vain in the fourth; b in the second; c never. Of the other tag
    the last message is settled and resumes the ones before that are not, up to the one that is new."""
    found = found_in_pieces["resumed deliveries"]
    outcomes: dict[str, list[tuple[int, str]]] = {}
    for text in found["messages"].elements():
        row = values_of(text)
        outcomes.setdefault(row["delivery_tag_hex"], []).append((int(row["delivery_id"]), row["outcome"].strip("'")))
    by_tag = {bytes.fromhex(tag.strip("'")): [end for _, end in sorted(rows)] for tag, rows in outcomes.items()}
    unknown, unsettled, presettled = "unknown", "unsettled", "presettled"
    assert by_tag == {
        b"a": [unknown, unknown, presettled, unsettled],
        b"b": ["confirmed", "confirmed", unsettled, unsettled],
        b"c": [unsettled] * 4,
        b"again": [presettled, unsettled, presettled] * 3 + [presettled, unknown, presettled],
        b"new": [unsettled, unknown, presettled, unsettled],
    }


# ---- credit in pieces ------------------------------------------------------------------------------------------------


def granted() -> Connection:
    """Credit of two messages and 12 bytes in window mode, which transfers use up and their completion returns; then it
    is set to zero, and granted anew in the mode credit, where nothing returns it."""
    connection = session_0_10()
    send_0_10(connection, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    for unit, value in ((0, 2), (1, 1000)):
        send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=value)
    data = transfer_0_10("d")
    connection.server_bytes(data[:-13]).server_bytes(data[-13:] + data)  # the body is in a capture of its own
    connection.wait(1)
    send_0_10(connection, "client", "session.completed", commands=[(0, 0)])
    connection.wait(1).server_bytes(data)
    connection.wait(1)
    send_0_10(connection, "client", "message.stop", destination="d")
    send_0_10(connection, "client", "session.completed", commands=[(0, 2)])
    connection.wait(1)
    send_0_10(connection, "client", "message.set-flow-mode", destination="d", flow_mode=0)
    for unit, value in ((0, 1), (1, 1000)):
        send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=value)
    connection.wait(1).server_bytes(data)
    send_0_10(connection, "client", "session.completed", commands=[(0, 3)])
    connection.wait(1)
    for sender, name in (("client", "session.detach"), ("server", "session.detached")):
        given = {"name": b"s"} | ({"code": 0} if sender == "server" else {})
        send_0_10(connection, sender, name, **given)
    return connection


def test_time_without_credit_is_the_same_in_pieces(found_in_pieces: dict[str, Rows]) -> None:
    """Every packet comes 1 ms after the one before. No credit: from message.subscribe to the second message.flow, 2 ms;
    from the second transfer, whose first frames come with the end of the one before, until one is completed, 1 s and
    1 ms; from the third until the second message.flow after the stop, 1 s and 1 ms to the stop, 1 ms to the completion,
    1 s and 1 ms, and 2 ms more; from the fourth to the detach, 1 ms, 1 s and 1 ms."""
    found = found_in_pieces["credit"]
    (link,) = found["links"]
    ms = 2 + 1001 + (1001 + 1 + 1001 + 2) + (1 + 1001)
    assert f" no_credit_ns={ms * 10**6}" in f" {link}"


def test_bytes_of_credit_count_however_frames_are_cut_into_batches(tmp_path: Path) -> None:
    """Credit for the bytes of one message, which is completed before the next one. A packet comes 1 ms after the one
    before. No credit: from message.subscribe to the second message.flow, 2 ms; from the first transfer to its
    completion, and from the second one to the detach, 1 s and 1 ms each."""
    connection = session_0_10()
    send_0_10(connection, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    data = len(header(("message.message-properties", {"content-length": 1}))) + 1
    for unit, value in ((0, 1000), (1, data)):
        send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=value)
    for number in range(2):
        connection.server_bytes(transfer_0_10("d")).wait(1)
        if number == 0:
            send_0_10(connection, "client", "session.completed", commands=[(0, 0)])
    send_0_10(connection, "client", "session.detach", name=b"s")
    decoded = decode_table(runs_of(connection, tmp_path))
    frames = decoded.filter(pc.equal(decoded["kind"], "frame")).drop_columns(["kind"])
    for size in (1, frames.num_rows):
        (link,) = followed(frames, size)["links"]
        assert f"'no_credit_ns': {(2 + 1001 + 1001) * 10**6}" in link


# ---- consumers in pieces ---------------------------------------------------------------------------------------------


def cancelled() -> Connection:
    """Deliveries are on their way when consumers are cancelled: by requests that wait for the answer to an earlier one,
    with and without an answer, by the server, by both sides. Tags and a queue's name are used again."""
    connection = consumed()
    for tag in ("late", "quiet", "both"):
        connection.asks("basic.consume", reply={"consumer_tag": tag}, queue=tag, consumer_tag=tag, no_ack=True)
    connection.client("basic.consume", queue="short", consumer_tag="short", no_ack=True)
    connection.client("basic.cancel", consumer_tag="short").client("basic.cancel", consumer_tag="late")
    connection.client("basic.cancel", consumer_tag="quiet", no_wait=True)
    connection.deliver(1, consumer_tag="late")
    connection.server("basic.consume-ok", consumer_tag="short").deliver(2, consumer_tag="short")
    connection.server("basic.cancel-ok", consumer_tag="short").deliver(3, consumer_tag="late")
    connection.server("basic.cancel-ok", consumer_tag="late").deliver(4, consumer_tag="quiet")
    connection.server("basic.cancel", consumer_tag="both", no_wait=True).client("basic.cancel", consumer_tag="both")
    connection.deliver(5, consumer_tag="c").server("basic.cancel-ok", consumer_tag="both")
    connection.asks("basic.consume", reply={"consumer_tag": "late"}, queue="other", consumer_tag="late", no_ack=True)
    connection.deliver(6, consumer_tag="late").deliver(7, consumer_tag="late").lose("server", 20)
    connection.client("basic.cancel", consumer_tag="late").deliver(8, consumer_tag="late")
    connection.server("basic.cancel-ok", consumer_tag="late")
    return connection.client("basic.cancel", consumer_tag="c")


def test_consumers_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    found = found_in_pieces["consumers"]
    links = [dict(part.partition("=")[::2] for part in text.split(" ")) for text in found["links"].elements()]
    assert sorted((row["name"], row["queue"], int(row["transfers"])) for row in links) == [
        ("'both'", "'both'", 0),
        ("'c'", "'q'", 1),
        ("'late'", "'late'", 2),
        ("'late'", "'other'", 3),
        ("'quiet'", "'quiet'", 1),
        ("'short'", "'short'", 1),
    ]
    assert sum("error='basic.cancel by the server'" in text for text in found["links"].elements()) == 1


# ---- queues in pieces ------------------------------------------------------------------------------------------------


def declaring() -> Connection:
    """Names of queues that the server gives are used after later ones, from two channels; a queue is deleted."""
    connection = Connection().handshake().open(1).open(2)
    for number in range(4):
        channel = 1 + number % 2
        connection.asks("queue.declare", channel, {"queue": f"amq.gen-{number}"}, queue="", exclusive=True)
        if number != 1:
            connection.consume("", f"of {number}", channel)
    for number, queue in enumerate(("retained", "deleted")):
        connection.asks("queue.declare", reply={"queue": queue}, queue=queue, arguments={"x-queue-type": "quorum"})
        connection.consume(queue, f"typed {number}")
    connection.asks("queue.delete", queue="deleted").asks("queue.declare", reply={"queue": "deleted"}, queue="deleted")
    connection.consume("deleted", "typed 2").consume("", "typed 3", channel=2)
    connection.client("queue.delete", queue="retained", if_empty=True).consume("retained", "typed 4", channel=2)
    for number, channel in enumerate((1, 2, 1, 2)):
        if number != 1:
            connection.deliver(1 + number, channel=channel, consumer_tag=f"of {number}")
    return connection


def test_queues_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    """A delete that is not answered may be refused: the queue keeps its type."""
    found = found_in_pieces["queues"]
    links = [dict(part.partition("=")[::2] for part in text.replace("' ", "'\n").replace("None ", "None\n").split("\n"))
             for text in found["links"].elements()]  # fmt: skip
    assert sorted((row["name"], row["queue"], row["queue_type"]) for row in links) == [
        ("'of 0'", "'amq.gen-0'", "None"),
        ("'of 2'", "'amq.gen-2'", "None"),
        ("'of 3'", "'amq.gen-3'", "None"),
        ("'typed 0'", "'retained'", "'quorum'"),
        ("'typed 1'", "'deleted'", "'quorum'"),
        ("'typed 2'", "'deleted'", "None"),
        ("'typed 3'", "'amq.gen-3'", "None"),
        ("'typed 4'", "'retained'", "'quorum'"),
    ]
    queues = [text.partition(" queue=")[2].partition(" ")[0] for text in found["messages"].elements()]
    assert sorted(queues) == ["'amq.gen-0'", "'amq.gen-2'", "'amq.gen-3'"]


def test_types_of_the_queues_declared_last_are_known(tmp_path: Path) -> None:
    connection, quorum, sizes = Connection().handshake().open(1), {"x-queue-type": "quorum"}, list[int]()
    lake, marks, name = Lake(), [BEGINNING], "queue {:06}".format
    for turn in range(3):
        numbers = range(turn * LIMITS.queue_types, (turn + 1) * LIMITS.queue_types)
        own = {"ticket": 0, "no_wait": True, "arguments": quorum}
        connection.client_bytes(
            b"".join(classic.method("0-9-1", "queue.declare", 1, queue=name(n), **own) for n in numbers)
        )
        for n in (numbers[0] - 1, numbers[0], numbers[-1]):
            tag, queue = f"{turn} {n:06}", name(max(n, 0))
            connection.asks("basic.consume", reply={"consumer_tag": tag}, queue=queue, consumer_tag="")
            connection.asks("basic.cancel", reply={"consumer_tag": tag}, consumer_tag=tag)
        marks.append(connection.now)
    table = runs_of(connection, tmp_path)
    for first, end in pairwise(marks):
        lake.add(piece(table, first, end))
        sizes.append(state_size(lake))
    assert sizes[2] - sizes[1] <= DIGITS, sizes
    types = [text.partition("queue_type=")[2].partition(" ")[0] for text in sorted(lake.final["links"])]
    assert types == 3 * ["'quorum'"] + 2 * ["None", "'quorum'", "'quorum'"]
    assert lake.final["links"] == rows_of(table)["links"]


# ---- subscriptions in pieces -----------------------------------------------------------------------------------------


def unsubscribed() -> Connection:
    """Transfers are on their way when subscriptions are cancelled, whose destinations are used again before and after
    the server has done that; the capture lacks bytes after one and within another; a session ends with a third."""
    connection = session_0_10()
    data = transfer_0_10

    def subscribe(name: str, queue: str) -> None:
        send_0_10(
            connection, "client", "message.subscribe", queue=queue, destination=name, accept_mode=0, acquire_mode=0
        )
        for unit in (0, 1):
            send_0_10(connection, "client", "message.flow", destination=name, unit=unit, value=1000)

    for name in "abc":  # 0 to 8
        subscribe(name, f"of {name}")
    connection.server_bytes(data("a") + data("b"))
    for name in "ab":  # 9, 10
        send_0_10(connection, "client", "message.cancel", destination=name)
    connection.server_bytes(data("a"))
    done_0_10(connection, 9).server_bytes(data("b"))
    subscribe("b", "again")  # 11 to 13
    done_0_10(connection.server_bytes(data("b")), 12)
    subscribe("a", "again")  # 14 to 16
    done_0_10(connection.server_bytes(data("a")), 16)
    send_0_10(connection, "client", "message.accept", transfers=[(0, 5)])  # 17
    send_0_10(connection, "client", "session.completed", commands=[(0, 5)])
    connection.lose("server", 40).server_bytes(data("c"))
    send_0_10(connection, "client", "message.cancel", destination="c")  # 18
    done_0_10(connection, 18)
    send_0_10(connection, "client", "message.cancel", destination="a")  # 19
    for sender, name in (("client", "session.detach"), ("server", "session.detached")):
        send_0_10(connection, sender, name, name=b"s", **({"code": 0} if sender == "server" else {}))
    session_of_0_10(connection, 0)
    return connection


def test_subscriptions_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    found = found_in_pieces["subscriptions"]
    links = [re.findall(r" (name|queue|transfers)=('.*?'|\S+)", f" {text}") for text in found["links"].elements()]
    assert sorted(tuple(value for _, value in row) for row in links) == [
        ("'a'", "'again'", "1"),
        ("'a'", "'of a'", "2"),
        ("'b'", "'again'", "1"),
        ("'b'", "'of b'", "2"),
        ("'c'", "'of c'", "1"),
        ("'d'", "'q'", "0"),
    ]


# ---- distributed transactions in pieces ------------------------------------------------------------------------------


def on_branches() -> Connection:
    """Results come before and after completions; branches are joined, their names are used again, and the last one is
    completed without a result."""
    connection = in_mode_dtx()
    publish_on(publish_on(publish_on(connection, b"x"), b"y"), b"x")  # 1 to 9
    send_0_10(connection, "client", "dtx.commit", **branch(b"y"))  # 10
    reported(done_0_10(connection, 10), 10, 1)  # xa-rbrollback
    send_0_10(connection, "client", "dtx.commit", **branch(b"x"))  # 11
    done_0_10(reported(connection, 11, 0), 11)  # xa-ok
    send_0_10(publish_on(connection, b"x"), "client", "dtx.rollback", **branch(b"x"))  # 12 to 15
    reported(done_0_10(connection, 15), 15, 4)  # xa-heurcom
    send_0_10(publish_on(connection, b"y"), "client", "dtx.rollback", **branch(b"y"))  # 16 to 19
    done_0_10(reported(connection, 19, 0), 19)
    send_0_10(publish_on(connection, b"z"), "client", "dtx.commit", **branch(b"z"))  # 20 to 23
    return done_0_10(publish_on(connection, b"x"), 23)


def test_distributed_transactions_in_pieces_end_as_in_one_go(found_in_pieces: dict[str, Rows]) -> None:
    found = found_in_pieces["distributed transactions"]
    ends = {}
    for text in found["messages"]:
        values = values_of(text)
        ends[int(values["delivery_id"])] = values["transaction"]
    committed, rolled_back = "'committed'", "'rolled-back'"
    assert ends == {
        2: committed,
        5: rolled_back,
        8: committed,
        13: committed,
        17: rolled_back,
        21: committed,
        25: "None",
    }


# ---- contents in pieces ----------------------------------------------------------------------------------------------


def typed_queues() -> Connection:
    """Declarations, their answers and the consumers."""
    connection = Connection().handshake().open(1).open(2).client("queue.purge", 2, queue="forgotten when b is declared")
    for queue, queue_type in (("a", "quorum"), ("b", "classic")):
        arguments = {"x-queue-type": queue_type}
        connection.asks("queue.declare", 1, {"queue": queue}, queue=queue, durable=True, arguments=arguments)
        if queue == "a":
            connection.server("queue.purge-ok", 2)
    connection.asks("basic.consume", 1, {"consumer_tag": "of b"}, queue="b")
    return connection.asks("basic.consume", 1, {"consumer_tag": "of a"}, queue="a").close()


def test_types_of_queues_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    found = found_in_pieces["types of queues"]
    for name, queue_type in (("of a", "quorum"), ("of b", "classic")):
        (link,) = (text for text in found["links"] if f"name='{name}'" in text)
        assert f"queue_type='{queue_type}'" in link


def returned() -> Connection:
    """A publish comes back while the body of another one is incomplete."""
    connection = Connection().handshake().open(1).open(2).asks("confirm.select", 1)
    connection.publish(b"back", 1, mandatory=True)
    connection.client("basic.publish", 2, routing_key="q")
    connection.data("client", classic.header("0-9-1", "basic", 2, 2) + classic.body(b"a", 2))
    given_back = {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "e", "routing_key": "q"}
    connection.server("basic.return", 1, **given_back).content(b"back", 1)
    return connection.server("basic.ack", 1, delivery_tag=1).data("client", classic.body(b"b", 2)).close()


def test_returns_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    """The confirm of a returned publish is not looked at before its return, whatever waits for the rest of a body."""
    assert sum("outcome='returned'" in text for text in found_in_pieces["returns"]["messages"]) == 1


def in_frames() -> Connection:
    """A header and a body in frames of their own."""
    data = header(("message.message-properties", {"content-length": 5}))
    connection = session_0_10()
    for kind, payload, flags in (
        (1, segment("message.transfer", {"destination": "amq.direct"}), FIRST_SEGMENT | ENDS),
        (2, data[:4], FIRST_FRAME), (2, data[4:9], 0), (2, data[9:], LAST_FRAME),
        (3, b"ab", LAST_SEGMENT | FIRST_FRAME), (3, b"cde", LAST_SEGMENT | LAST_FRAME),
    ):  # fmt: skip
        connection.data("client", frame(kind, payload, 1, flags))
    return connection


def test_bodies_behind_a_header_of_many_frames_in_pieces_are_those_of_one_go(found_in_pieces: dict[str, Rows]) -> None:
    """Frames of a header are not part of the body (0-10, 2.3)."""
    messages = found_in_pieces["headers in frames"]["messages"]
    assert [" body_size=5 body_captured=5 complete=True " in text for text in messages] == [True]


IN_PIECES: dict[str, Callable[[], Connection]] = {
    "transactions of 1.0": entangled,
    "sessions and links": lambda: changing(True),
    "sessions and links, seen from their middle": lambda: changing(False),
    "resumed deliveries": resuming,
    "credit": granted,
    "consumers": cancelled,
    "queues": declaring,
    "subscriptions": unsubscribed,
    "distributed transactions": on_branches,
    "types of queues": typed_queues,
    "returns": returned,
    "headers in frames": in_frames,
}
