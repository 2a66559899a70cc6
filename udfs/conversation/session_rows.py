"""Rows of tables channels, links and messages from the records of the session tracker (0-10, 1.0)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.amqp.versions import VERSIONS
from codec.conversation.sessions import semantics
from codec.conversation.sessions.outcomes import Outcomes
from codec.conversation.sessions.semantics import names_with
from codec.conversation.sessions.state import (
    CLIENT,
    CONNECTION,
    NO_LIMIT,
    NONE,
    RECEIVER,
    REQUEST_CELLS,
    REQUEST_FRAME,
    REQUEST_LOSSES,
    REQUESTS,
    SENDER,
    SERVER,
    SUBSCRIPTION,
    SessionRecords,
)
from codec.conversation.settled import Frames
from codec.sides import SIDES
from codec.stalls import CHANNEL, INCARNATION, LINK, NO_CREDIT, last_rows
from codec.stalls import CONNECTION as CONNECTION_CELL
from udfs.addresses import named_by
from udfs.arrow.dictionaries import Numbers
from udfs.arrow.fields import hexed
from udfs.arrow.rows import Index, elapsed, in_one_text, timestamps
from udfs.conversation.performatives import Performatives

Integers = NDArray[np.int64]
# Arguments of the frame that begins a message.
_OF_TRANSFERS = ("destination", "delivery_tag", "message_format", "resume", "acquire_mode")
COUNTS = (len(SIDES), len(semantics.OUTCOMES) + 1)
_TEXT, _NUMBER, _TRUTH = pa.string(), pa.int64(), pa.bool_()
STREAM_FILTER = '"rabbitmq:stream-'  # in filters as JSON: only sources that are streams have these
# Messages that begin (`begun_messages`).
BEGUN_MESSAGES = pa.schema(
    [
        ("connection_id", _NUMBER), ("frame_no", _NUMBER), ("version", _TEXT), ("channel", _NUMBER),
        ("channel_life", _NUMBER), ("operation", _TEXT), ("exchange", _TEXT), ("queue", _TEXT), ("link", _TEXT),
        ("browsed", _TRUTH), ("delivery_tag_hex", _TEXT), ("delivery_id", _NUMBER), ("message_format", _NUMBER),
        ("resumed", _TRUTH),
    ]
)  # fmt: skip
# Outcomes of messages (`message_outcomes`).
OUTCOMES = pa.schema(
    [
        ("connection_id", _NUMBER), ("first_frame_no", _NUMBER), ("address", _TEXT), ("browsed", _TRUTH),
        ("topic", _TEXT), ("outcome", _TEXT), ("outcome_error", _TEXT), ("outcome_info", _TEXT),
        ("settled_ts_ns", _NUMBER), ("settled_frame_no", _NUMBER), ("handled_ts_ns", _NUMBER), ("transaction", _TEXT),
    ]
)  # fmt: skip


def _known(values: Integers) -> pa.Array:
    return pa.array(values, mask=values == NONE)


def _one_of(texts: Sequence[str | None], places: Integers) -> pa.Array:
    """The text at each place, null where there is none."""
    return pa.array(texts).take(pa.array(places, mask=(places < 0) | (places >= len(texts))))


def _error_texts(records: NDArray[np.void], texts: Numbers) -> pa.Array:
    return in_one_text([texts.column(records[name]) for name in ("condition", "description")], ": ")


def begun_messages(begun: SessionRecords, performatives: Performatives, texts: Numbers) -> pa.Table:
    """The messages that begin in `performatives` (BEGUN_MESSAGES): records of the tracker, and their arguments."""
    contents = begun.messages["command"] == 0
    messages = {
        name: begun.messages[name][contents]
        for name in ("connection", "frame_no", "session", "sender", "link", "row", "number", "readable")
    }
    link = messages["link"]  # NONE, which is -1, is the last one
    rows = messages["row"]
    of_links = {name: texts.column(np.append(begun.links[name], 0)[link]) for name in ("name", "queue")}
    own = performatives.arguments.of(messages["row"], _OF_TRANSFERS)
    to_destination = pa.array(performatives.are("name", *names_with("on_destination"))[rows])
    by_client, readable = pa.array(messages["sender"] == CLIENT), pa.array(messages["readable"] == 1)
    nothing, no_truth = pa.scalar(None, pa.string()), pa.scalar(None, pa.bool_())
    return pa.table(
        {
            "connection_id": messages["connection"],
            "frame_no": messages["frame_no"],
            "version": _one_of(VERSIONS, performatives.cells("version")[rows]),
            "channel": begun.sessions["channel"][messages["session"]],
            "channel_life": begun.sessions["incarnation"][messages["session"]],
            "operation": _one_of(semantics.OPERATIONS, messages["sender"]),
            "exchange": pc.if_else(
                pc.and_(to_destination, by_client), pc.if_else(readable, pc.fill_null(own["destination"], ""), nothing),
                nothing,
            ),
            "queue": of_links["queue"],
            "link": pc.if_else(
                to_destination, pc.if_else(by_client, nothing, own["destination"]), of_links["name"]
            ),
            "browsed": pc.if_else(by_client, no_truth, pc.equal(own["acquire_mode"], semantics.NOT_ACQUIRED)),
            "delivery_tag_hex": hexed(own["delivery_tag"]),
            "delivery_id": pa.array(messages["number"], mask=messages["number"] == NONE),
            "message_format": own["message_format"],
            "resumed": pc.if_else(
                pc.or_(to_destination, pc.invert(readable)), no_truth, pc.fill_null(own["resume"], False)
            ),
        }
    )  # fmt: skip


def links_are_known(records: SessionRecords) -> NDArray[np.bool_]:
    """Of messages: whether no later frame changes the columns that come from their link."""
    links, at = records.links, records.messages["link"]
    known = (links["known"] == 0) | (links["kind"] == SUBSCRIPTION)
    known |= (links["client_attached"] == 1) & (links["server_attached"] == 1)
    found: NDArray[np.bool_] = (at == NONE) | np.append(known, True)[at]
    return found


def counted(records: SessionRecords, outcomes: Outcomes, chosen: NDArray[np.bool_]) -> Integers:
    """Counts of the chosen messages by session, sender and outcome."""
    counts = np.zeros((len(records.sessions), *COUNTS), np.int64)
    messages = records.messages[chosen]
    np.add.at(counts, (messages["session"], messages["sender"], outcomes.outcome[chosen]), 1)
    return counts


def channel_rows(records: SessionRecords, counts: Integers, texts: Numbers) -> pa.Table:
    sessions = records.sessions

    def count(side: int, names: tuple[str, ...]) -> pa.Array:
        numbers = [semantics.OUTCOMES.index(name) + 1 for name in names]
        return pa.array(counts[:, side, numbers].sum(axis=1))

    code = np.where(sessions["reason_code"] != NONE, sessions["reason_code"], sessions["detach_code"])
    columns = {
        "connection_id": pa.array(sessions["connection"]),
        "channel": pa.array(sessions["channel"]),
        "channel_life": pa.array(sessions["incarnation"]),
        "session_name": texts.column(sessions["name"]),
        "remote_channel": _known(sessions["remote_channel"]),
        "opened_ts": timestamps(_known(sessions["opened_ns"])),
        "closed_ts": timestamps(_known(sessions["closed_ns"])),
        "close_initiator": _one_of(SIDES, sessions["close_sender"]),
        "close_code": _known(code),
        "close_text": _error_texts(sessions, texts),
        "mode": pc.fill_null(_one_of(semantics.MODES, sessions["mode"] - 1), "none"),
        "incoming_window": _known(sessions["incoming_window"]),
        "outgoing_window": _known(sessions["outgoing_window"]),
        "published": count(CLIENT, semantics.OUTCOMES),
        "delivered": count(SERVER, semantics.OUTCOMES),
        "unsettled": pc.add(count(CLIENT, ("unsettled",)), count(SERVER, ("unsettled",))),
        **{name: count(SIDES.index(side), names) for name, (side, names) in semantics.COUNTED.items()},
    }
    return pa.table(columns).filter(pa.array(sessions["listed"] == 1))


def message_outcomes(records: SessionRecords, outcomes: Outcomes, texts: Numbers) -> pa.Table:
    """The outcomes of messages, and columns that come from their links (OUTCOMES)."""
    messages, links = records.messages, records.links
    address, browsed = np.zeros(len(messages), np.int64), np.full(len(messages), NONE)
    on_link = messages["link"] != NONE
    at = messages["link"][on_link]
    address[on_link] = _first(links, "server", "client")[at]
    browsed[on_link] = _distribution(links)[at]
    topic = np.where(on_link, np.append(_are_topics(links), False)[messages["link"]] * address, 0)
    browsed[messages["sender"] == CLIENT] = NONE
    return pa.table(
        {
            "connection_id": messages["connection"],
            "first_frame_no": messages["frame_no"],
            "address": texts.column(address),
            "browsed": pa.array(browsed == 1, mask=browsed == NONE),
            "topic": texts.column(topic),
            "outcome": _one_of(semantics.OUTCOMES, outcomes.outcome - 1),
            "outcome_error": texts.column(outcomes.error),
            "outcome_info": texts.column(outcomes.info),
            "settled_ts_ns": _known(outcomes.settled_ns),
            "settled_frame_no": _known(outcomes.settled_frame_no),
            "handled_ts_ns": pa.nulls(len(messages), _NUMBER),
            "transaction": _one_of(semantics.TRANSACTIONS, outcomes.transaction - 1),
        }
    )


def command_replies(records: SessionRecords, outcomes: Outcomes, chosen: NDArray[np.bool_]) -> pa.Table:
    """Replies to the chosen commands of 0-10, and of transaction coordinators."""
    answered = chosen & (outcomes.reply_frame_no != NONE)
    messages, events, reply_frame_no = records.messages[answered], records.events, outcomes.reply_frame_no[answered]
    at = Index(events["connection"], events["frame_no"]).find(messages["connection"], reply_frame_no)
    names = np.where(at >= 0, events["name"][at], 0)
    return _replies(messages, reply_frame_no, names, outcomes.reply_ns[answered])


def request_replies(replies: NDArray[np.void]) -> pa.Table:
    """Replies to other requests, as `codec.conversation.sessions.state.take_replies` returns them."""
    return _replies(replies, *(replies[name] for name in ("reply_frame_no", "name", "reply_ts_ns")))


def _replies(requests: NDArray[np.void], frame_no: Integers, names: Integers, reply_ns: Integers) -> pa.Table:
    """The replies to `requests`: their frames, `names` (of `semantics.NAMES` from 1 on; 0: not known), and times."""
    times = (pa.array(np.ascontiguousarray(ns)) for ns in (requests["ts_ns"], reply_ns))
    return pa.table(
        {
            "connection_id": requests["connection"],
            "frame_no": requests["frame_no"],
            "reply_frame_no": frame_no,
            "reply_name": _one_of(semantics.NAMES, names - 1),
            "reply_latency_ns": elapsed(*times),
        }
    )


def waiting_requests(records: SessionRecords, numbers: Integers) -> Frames:
    """Frames of requests that may still be answered: those of sessions and links, and of connections themselves by
    their `numbers` (n, CELLS)."""
    found = [(rows["connection"], rows["waiting"]) for rows in (records.sessions, records.links)]
    found.append((numbers[:, CONNECTION], numbers[:, REQUESTS:]))
    return Frames.of(*(_frames_of(connection, cells[:, REQUEST_FRAME::REQUEST_CELLS]) for connection, cells in found))


def waiting_at_end(records: SessionRecords) -> Frames:
    """Frames of requests that wait when their connections end, of sessions and links that are open then; none after a
    loss."""
    sessions, links = records.sessions, records.links
    open_sessions = sessions["closed_ns"] == NONE
    open_links = open_sessions[links["session"]] & (links["closing_ns"] == NONE)
    found = []
    for rows, losses in (
        (sessions[open_sessions], sessions["losses"][open_sessions]),
        (links[open_links], sessions["losses"][links["session"][open_links]]),
    ):
        cells = rows["waiting"].copy()
        cells[:, REQUEST_FRAME::REQUEST_CELLS] *= cells[:, REQUEST_LOSSES::REQUEST_CELLS] == losses[:, None]
        found.append(_frames_of(rows["connection"], cells[:, REQUEST_FRAME::REQUEST_CELLS]))
    return Frames.of(*found)


def _frames_of(connection: Integers, frames: Integers) -> Frames:
    """`frames` (n, m): 1 + the numbers of frames of each connection, 0 for none."""
    at, _ = waits = np.nonzero(frames)
    return Frames(connection[at], frames[waits] - 1)


def _of_sender(links: NDArray[np.void], name: str, unknown: int = NONE) -> Integers:
    """A field of the source as the sending side of each link states it, else as the other side requests it."""
    own, other = _by_side(links, links["kind"] == SENDER, name)
    found: Integers = np.where(own != unknown, own, other)
    return found


def _distribution(links: NDArray[np.void]) -> Integers:
    """The distribution mode of each link, an index in DISTRIBUTION_MODES or NONE."""
    modes: Integers = (_of_sender(links, "copies") + 1) % semantics.OF_TOPIC - 1
    return modes


def _are_topics(links: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether a side of each link says by capabilities that the node of the broker is a topic."""
    topics: NDArray[np.bool_] = np.maximum(links["client_copies"], links["server_copies"]) >= semantics.OF_TOPIC - 1
    return topics


def _by_side(links: NDArray[np.void], by_client: NDArray[np.bool_], name: str) -> list[Integers]:
    """A field as the client of each link states it where `by_client`, else as the server does; and as the other side of
    each states it."""
    return [np.where(by_client, links[f"{a}_{name}"], links[f"{b}_{name}"]) for a, b in (SIDES, SIDES[::-1])]


def _first(links: NDArray[np.void], one: str, other: str) -> Integers:
    """The address that side `one` states, else that of the other: the server knows the address of a dynamic node."""
    addresses: Integers = np.where(links[f"{one}_address"] > 0, links[f"{one}_address"], links[f"{other}_address"])
    return addresses


def link_rows(records: SessionRecords, idle_ns: Integers, texts: Numbers) -> pa.Table:
    """`idle_ns`: how long each subscription had no credit, NONE for unknown."""
    links = records.links
    session = records.sessions[links["session"]]
    of_1_0, known = links["kind"] != SUBSCRIPTION, links["known"] == 1
    closed_ns = _closed(links, session)
    snd_mode, rcv_mode = _modes(links, of_1_0 & known)
    no_ack = pc.if_else(
        pa.array(of_1_0), pc.equal(snd_mode, "settled"), pa.array(links["no_ack"] == 1, mask=links["no_ack"] == NONE)
    )
    # Without a detach a link of 1.0 ends as its session does.
    failing = np.where(links["closing_ns"] == NONE, session["failed"], links["failed"]) == 1
    by_session = pa.array(links["closing_ns"] == NONE)
    error = pc.if_else(by_session, _error_texts(session, texts), _error_texts(links, texts))
    no_credit_ns = np.where(of_1_0, _starved(links, session, closed_ns), idle_ns)
    flow_mode = np.where(
        ~of_1_0 & known & (links["flow_mode"] == NONE), semantics.DEFAULT_FLOW_MODE, links["flow_mode"]
    )
    credit = np.where(links["unlimited"] == 1, NO_LIMIT, links["credit"])
    credit = np.where(~of_1_0 & known & (credit == NONE), 0, credit)
    credit = np.where(of_1_0 & (links["initial_count"] == NONE), NONE, credit)
    handle = np.where(links["client_handle"] != NONE, links["client_handle"], links["server_handle"])
    address = texts.column(np.where(of_1_0, _first(links, "server", "client"), 0))
    receives = pa.array(links["kind"] == RECEIVER)
    _, _, named = named_by(address)
    queue = pc.coalesce(texts.column(links["queue"]), pc.if_else(receives, named, pa.scalar(None, pa.string())))
    filters = _filters(links, texts)
    of_stream = pc.match_substring(filters["filters"], STREAM_FILTER).fill_null(False)
    columns = {
        "connection_id": pa.array(links["connection"]),
        "channel": pa.array(session["channel"]),
        "channel_life": pa.array(session["incarnation"]),
        "kind": _one_of(semantics.LINK_KINDS, links["kind"] - 1),
        "name": texts.column(links["name"]),
        "handle": _known(handle),
        "address": address,
        "queue": queue,
        "queue_type": pc.if_else(of_stream, "stream", pa.scalar(None, pa.string())),
        "snd_settle_mode": snd_mode,
        "rcv_settle_mode": rcv_mode,
        "acquire_mode": _one_of(semantics.ACQUIRE_MODES, links["acquire_mode"]),
        "distribution_mode": _one_of(semantics.DISTRIBUTION_MODES, _distribution(links)),
        **filters,
        "no_ack": no_ack,
        "exclusive": pa.array(links["exclusive"] == 1, mask=links["exclusive"] == NONE),
        "opened_ts": timestamps(_known(links["opened_ns"])),
        "closed_ts": timestamps(_known(closed_ns)),
        "error": pc.if_else(pa.array(failing & of_1_0), error, pa.scalar(None, pa.string())),
        "flow_mode": _one_of(semantics.FLOW_MODES, flow_mode),
        "credit": _known(credit),
        "transfers": pa.array(links["transfers"]),
        "no_credit_ns": _known(no_credit_ns),
    }
    refusals = _commands(records.refusals["session"], records.refusals["command_id"])
    refused = np.isin(_commands(links["session"], links["command_id"]), refusals)
    refused &= links["command_id"] != NONE
    listed = (known & ~refused) | (links["transfers"] > 0)
    return pa.table(columns).filter(pa.array(listed))


def _filters(links: NDArray[np.void], texts: Numbers) -> dict[str, pa.Array]:
    """The filters that the receiving side of each link asks for, and those that the sending side grants: '{}' for none
    of them, and as they are asked for if it did not answer, or with no source, which refuses the link."""
    by_client = links["kind"] == SENDER
    own, asked = _by_side(links, by_client, "filters")
    answers = np.logical_and(*(_by_side(links, by_client, name)[0] == 1 for name in ("attached", "has_source")))
    granted = texts.column(np.where(answers, own, asked))
    none = pa.array(answers & (own == 0) & (asked != 0))
    return {"filters": pc.if_else(none, "{}", granted), "filters_requested": texts.column(asked)}


def _modes(links: NDArray[np.void], have_modes: NDArray[np.bool_]) -> list[pa.Array]:
    """The settle modes of sender and receiver: of the side that decides it, else as the other side requests it."""
    client_sends = links["kind"] == SENDER
    found = []
    for name, modes, default, client_decides in (
        ("snd_mode", semantics.SND_SETTLE_MODES, semantics.DEFAULT_SND_SETTLE_MODE, client_sends),
        ("rcv_mode", semantics.RCV_SETTLE_MODES, semantics.DEFAULT_RCV_SETTLE_MODE, ~client_sends),
    ):
        attached, _ = _by_side(links, client_decides, "attached")
        mode = np.where(attached == 1, *_by_side(links, client_decides, name))
        found.append(_one_of(modes, np.where(have_modes, np.where(mode == NONE, default, mode), NONE)))
    return found


def _closed(links: NDArray[np.void], session: NDArray[np.void]) -> Integers:
    """When each link ended, NONE: it did not."""
    # A link that is attached when its session has already ended ends at once.
    with_session = np.where(session["closed_ns"] == NONE, NONE, np.maximum(session["closed_ns"], links["opened_ns"]))
    closed_ns: Integers = np.where(links["closing_ns"] != NONE, links["closing_ns"], with_session)
    return closed_ns


def link_stalls(records: SessionRecords) -> Integers:
    """The last stalls of links of 1.0 (`codec.stalls.last_rows`), as far as their credit is known."""
    links, session = records.links, records.sessions[records.links["session"]]
    sides = np.where(links["kind"] == SENDER, CLIENT, SERVER)
    rows = last_rows(links, NO_CREDIT, sides, _closed(links, session))
    whole = (_starved(links, session, _closed(links, session)) != NONE) & (links["initial_count"] != NONE)
    found: Integers = rows[whole[rows[:, LINK]]]
    return found


def with_links(rows: Integers, records: SessionRecords) -> Integers:
    """Rows of `codec.stalls` with indices of links in `records`, with the names of these."""
    links = records.links[rows[:, LINK]]
    session = records.sessions[links["session"]]
    rows[:, CONNECTION_CELL], rows[:, LINK] = links["connection"], links["name"]
    rows[:, CHANNEL], rows[:, INCARNATION] = session["channel"], session["incarnation"]
    return rows


def _starved(links: NDArray[np.void], session: NDArray[np.void], closed_ns: Integers) -> Integers:
    """How long the sender of a 1.0 link had no credit; NONE where bytes are missing."""
    unknown_count = links["initial_count"] == NONE
    waited = np.where(unknown_count, links["last_ns"] - links["opened_ns"], links["starved_ns"])
    until = np.where(closed_ns != NONE, closed_ns, session["last_listed_ns"])
    rest = np.where((links["starves"] == 1) | unknown_count, np.maximum(until - links["last_ns"], 0), 0)
    closing_losses = links["closing_losses"]
    last_losses = np.where(closing_losses != NONE, closing_losses, session["listed_losses"])
    whole = (links["known"] == 1) & (links["losses"] == last_losses)
    starved: Integers = np.where(whole, waited + rest, NONE)
    return starved


def _commands(sessions: Integers, commands: Integers) -> Integers:
    named: Integers = (sessions << 33) + commands
    return named
