"""Rows of tables channels, links and messages from the records of the session tracker (0-10, 1.0)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation import oddities
from codec.conversation import session_state as semantics
from codec.conversation.session_links import (
    CREDIT,
    NEW_CREDIT,
    Changes,
    apply_changes,
)
from codec.conversation.session_outcomes import Outcomes, rows_in
from codec.conversation.session_state import (
    CLIENT,
    COMPLETIONS,
    CONNECTION,
    MAPS,
    NO_LIMIT,
    NONE,
    REQUEST_CELLS,
    REQUEST_FRAME,
    REQUEST_LOSSES,
    REQUESTS,
    SENDER,
    SERVER,
    SUBSCRIPTION,
    SessionRecords,
    names_with,
)
from codec.conversation.settlement import Frames, Settled
from codec.conversation.states import blank
from codec.memory import as_kernel_array, as_records
from codec.names import SIDES
from codec.protocol.versions import VERSIONS
from codec.stalls import CHANNEL, INCARNATION, LINK, NO_CREDIT, last_rows, new_rows
from codec.stalls import CONNECTION as CONNECTION_CELL
from codec.tables import ODDITY
from udfs.arrow.arrays import (
    Index,
    concat_ws,
    elapsed,
    timestamps,
)
from udfs.arrow.fields import to_hex
from udfs.arrow.types import Numbers, arrow_schema, cast_to
from udfs.conversation.addresses import named_by
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.performatives import Performatives
from udfs.conversation.tracker_states import Begins, ConnectionRecords

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
        ("channel_incarnation", _NUMBER), ("operation", _TEXT), ("exchange", _TEXT), ("queue", _TEXT), ("link", _TEXT),
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


def _one_of(texts: Sequence[str | None], indices: Integers) -> pa.Array:
    """The text at each index, null where there is none."""
    return pa.array(texts).take(pa.array(indices, mask=(indices < 0) | (indices >= len(texts))))


def _error_texts(records: NDArray[np.void], texts: Numbers) -> pa.Array:
    return concat_ws([texts.column(records[name]) for name in ("condition", "description")], ": ")


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
            "channel_incarnation": begun.sessions["incarnation"][messages["session"]],
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
            "delivery_tag_hex": to_hex(own["delivery_tag"]),
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


def counted(records: SessionRecords, outcomes: Outcomes, mask: NDArray[np.bool_]) -> Integers:
    """Counts of the chosen messages by session, sender and outcome."""
    counts = np.zeros((len(records.sessions), *COUNTS), np.int64)
    messages = records.messages[mask]
    np.add.at(counts, (messages["session"], messages["sender"], outcomes.outcome[mask]), 1)
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
        "channel_incarnation": pa.array(sessions["incarnation"]),
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


def command_replies(records: SessionRecords, outcomes: Outcomes, mask: NDArray[np.bool_]) -> pa.Table:
    """Replies to the chosen commands of 0-10, and of transaction coordinators."""
    answered = mask & (outcomes.reply_frame_no != NONE)
    messages, events, reply_frame_no = records.messages[answered], records.events, outcomes.reply_frame_no[answered]
    at = Index(events["connection"], events["frame_no"]).find(messages["connection"], reply_frame_no)
    names = np.where(at >= 0, events["name"][at], 0)
    return _replies(messages, reply_frame_no, names, outcomes.reply_ns[answered])


def request_replies(replies: NDArray[np.void]) -> pa.Table:
    """Replies to other requests, as `codec.conversation.session_state.take_replies` returns them."""
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


def missing_fields(performatives: Performatives) -> Integers:
    """Rows of `codec.conversation.oddities` for frames that lack fields."""
    at, names = performatives.missing()
    if not len(at):
        return oddities.new_rows(0)
    rows = np.full((len(at), len(oddities.CELLS)), NONE)
    for cell, name in (
        (oddities.CONNECTION, "connection_id"), (oddities.FRAME_NO, "frame_no"), (oddities.TS, "ts_ns"),
        (oddities.SIDE, "sender"), (oddities.CHANNEL, "channel"),
    ):  # fmt: skip
        rows[:, cell] = performatives.cells(name)[at]
    rows[:, oddities.NAME] = oddities.REQUIRED_MISSING
    rows[:, oddities.MISSING] = names
    return rows


def oddity_rows(rows: Integers, missing: pa.Array) -> pa.RecordBatch:
    """Rows of `codec.conversation.oddities` as `codec.tables.ODDITY`; `missing`: names of fields, after commas."""
    columns = {name: _known(np.ascontiguousarray(rows[:, cell])) for cell, name in enumerate(oddities.CELLS)}
    columns["side"] = _one_of(SIDES, rows[:, oddities.SIDE])
    columns["name"] = _one_of(oddities.NAMES, rows[:, oddities.NAME])
    columns["version"] = _one_of(semantics.VERSIONS, (rows[:, oddities.NAME] < oddities.CONTROL_CHANNEL).astype(int))
    columns["missing"] = pc.split_pattern(missing, ", ")
    return cast_to(columns, arrow_schema(ODDITY))


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
    _, _, named = named_by(address)
    queue = pc.coalesce(texts.column(links["queue"]), named)
    filters = _filters(links, texts)
    of_stream = pc.match_substring(filters["filters"], STREAM_FILTER).fill_null(False)
    columns = {
        "connection_id": pa.array(links["connection"]),
        "channel": pa.array(session["channel"]),
        "channel_incarnation": pa.array(session["incarnation"]),
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


# Credit of subscriptions of 0-10: changes of it are applied once nothing before them can change.


Truths = NDArray[np.bool_]
# A transfer that has used credit and not returned it, or (bytes NONE) a flush that is not completed.
USE = blank("connection session link frame_no byte_count").dtype
BYTE_COUNT = blank("connection frame_no size").dtype
BYTES_OF_FRAMES = {"connection": "connection_id", "frame_no": "content_frame_no", "size": "payload_size"}
NOTHING = np.zeros(0, np.int64)
LATER = np.iinfo(np.int64).max


class ByteCounts(ConnectionRecords):
    """The bytes of credit that messages use, until the changes of credit that use them are applied."""

    def __init__(self) -> None:
        super().__init__(BYTE_COUNT)

    def add_frames(self, frames: FrameBatch) -> None:
        """Add those of the messages in these frames."""
        counts = frames.are("version", *semantics.COUNTS_BYTES) & frames.are("frame_type", *semantics.BYTES_OF)
        counts &= frames.have("content_frame_no") & frames.have("payload_size")
        if counts.any():
            at = np.flatnonzero(counts)
            byte_count = np.zeros(len(at), BYTE_COUNT)
            for field, name in BYTES_OF_FRAMES.items():
                byte_count[field] = frames.cells(name)[at]
            self.add(byte_count)

    def by_change(self, changes: NDArray[np.void]) -> tuple[Integers, Integers]:
        """The bytes that each change of credit uses; the change that uses each of `all()`, -1 for none."""
        byte_count, used = self.all(), np.zeros(len(changes), np.int64)
        at = Index(changes["connection"], changes["frame_no"]).find(byte_count["connection"], byte_count["frame_no"])
        np.add.at(used, at[at >= 0], byte_count["size"][at >= 0])
        return used, at


class Credits:
    """`uses`, and `known`: the credit of subscriptions after the changes that were applied; indices of sessions and
    links count within each connection."""

    def __init__(self) -> None:
        self.uses, self.known = ConnectionRecords(USE), ConnectionRecords(CREDIT)
        self.stalls: list[Integers] = []  # rows of `codec.stalls`, with indices of links in their records

    def apply(
        self, records: SessionRecords, completed: Settled, byte_count: Integers, ended: bool = False
    ) -> tuple[Truths, Truths]:
        """Apply the changes before which no other can come -> which changes were applied, and which of the `completed`
        transfers have returned their credit. `bytes`: those that each change uses; the last transfer of a session may
        get more, unless both sides have ended it, or (`ended`) its connection has."""
        sessions, changes = records.sessions, records.changes
        sent = changes["sent"] == 1
        limit = np.full(len(sessions), -1)
        np.maximum.at(limit, changes["session"][sent], changes["frame_no"][sent])
        goes_on = not ended
        goes_on &= (sessions["close_client_hidden"] == NONE) | (sessions["close_server_hidden"] == NONE)
        limit = np.where((limit < 0) | ~goes_on, LATER, limit)
        now = changes["frame_no"] < limit[changes["session"]]
        uses = self._uses(records, now & (sent | (changes["zeroes"] == semantics.FLUSHES)), byte_count)
        sender = np.where(uses["byte_count"] == NONE, CLIENT, SERVER)
        end = rows_in(completed, uses["session"] * MAPS + COMPLETIONS + sender, uses["frame_no"])
        back = end != NONE
        back[back] = completed.settled_frame_no[end[back]] < limit[uses["session"][back]]
        returned, over = end[back], np.zeros(len(completed.frame_no), bool)
        over[returned] = True
        flushed = uses["byte_count"][back] == NONE
        own, nothing = changes[now], np.zeros(len(returned), np.int64)
        columns = {
            "link": (own["link"], uses["link"][back]),
            "frame_no": (own["frame_no"], completed.settled_frame_no[returned]),
            "ts_ns": (own["ts_ns"], completed.settled_ns[returned]),
            "messages": (own["messages"], np.where(flushed, 0, 1)),
            "byte_count": (
                np.where(sent, -byte_count, changes["byte_count"])[now],
                np.where(flushed, 0, uses["byte_count"][back]),
            ),
            "sent_frame_no": (np.full(len(own), NONE), np.where(flushed, NONE, uses["frame_no"][back])),
            "zeroes": (own["zeroes"], np.where(flushed, semantics.FLUSHED, 0)),
            "flow_mode": (own["flow_mode"], nothing + NONE),
            "cancels": (own["cancels"], nothing),
            "losses": (own["losses"], nothing + NONE),
            "packet_no": (own["packet_no"], nothing + NONE),
            "file": (own["file"], nothing + NONE),
        }
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        credits = self._by_link(records)
        first = np.full(len(credits), LATER)
        np.minimum.at(first, own["link"], own["losses"])
        credits["losses"] = np.where((credits["losses"] == NONE) & (first != LATER), first, credits["losses"])
        order = np.lexsort([whole["frame_no"], whole["link"]])
        rows, count = new_rows(len(order)), np.zeros(1, np.int64)
        changes_in_order = Changes(*(as_kernel_array(whole[name][order]) for name in Changes._fields))
        apply_changes(changes_in_order, as_records(credits), rows, count)
        self.stalls.append(rows[: count[0]])
        self._store(records, credits, uses[~back])
        return now, over

    def idle_times(self, records: SessionRecords) -> Integers:
        """How long each subscription had no credit; NONE where bytes are missing, and for other links."""
        session, credits = records.sessions[records.links["session"]], self._by_link(records)
        until = np.where(session["closed_ns"] != NONE, session["closed_ns"], session["last_ns"])
        rest = np.where(credits["since_ns"] == NONE, 0, np.maximum(until - credits["since_ns"], 0))
        closing_losses = records.links["closing_losses"]
        losses = np.where(closing_losses != NONE, closing_losses, session["losses"])
        whole = (credits["losses"] != NONE) & (losses <= credits["losses"])
        found: Integers = np.where(whole, credits["idle_ns"] + rest, NONE)
        return found

    def take_stalls(self, records: SessionRecords, over: Truths) -> Integers:
        """Remove and return the stalls since the last call, with those of links that are `over`: rows of
        `codec.stalls`, with indices of links in `records`."""
        found, self.stalls = self.stalls, []
        until_ns = records.sessions["closed_ns"][records.links["session"]]
        last = last_rows(self._by_link(records), NO_CREDIT, np.full(len(until_ns), SERVER), until_ns)
        return np.concatenate([new_rows(0), *found, last[over[last[:, LINK]]]])

    def drop(self, records: NDArray[np.void]) -> None:
        """Forget the connections of these records."""
        for known in (self.uses, self.known):
            known.drop(records["connection"])

    def renumber(self, records: SessionRecords, sessions: Truths, links: Truths) -> None:
        """Sessions and links of open connections are dropped: all of `records`, in which these are marked."""
        uses = self._uses(records, np.zeros(len(records.changes), bool), NOTHING)
        uses = uses[~sessions[uses["session"]]]
        credits = self._by_link(records)[~links]
        for field, dropped in (("session", sessions), ("link", links)):
            uses[field] = (np.cumsum(~dropped) - 1)[uses[field]]
        left = records._replace(sessions=records.sessions[~sessions], links=records.links[~links])
        self._store(left, credits, uses)

    def used(self, records: SessionRecords) -> Integers:
        """The links with transfers whose credit may still be returned."""
        links: Integers = self._uses(records, np.zeros(len(records.changes), bool), NOTHING)["link"]
        return links

    def _uses(self, records: SessionRecords, new: Truths, byte_count: Integers) -> NDArray[np.void]:
        """The uses of the connections of `records`, and those of `new` changes; with indices within all records."""
        changes = records.changes[new]
        more = np.zeros(len(changes), USE)
        for field in ("connection", "session", "link", "frame_no"):
            more[field] = changes[field]
        more["byte_count"] = byte_count[new] if len(byte_count) else 0
        more["byte_count"][changes["zeroes"] == semantics.FLUSHES] = NONE
        sessions, links = Begins(records.sessions), Begins(records.links)
        known = self.uses.of(sessions.ids)
        known["session"] += sessions.of(known["connection"])
        known["link"] += links.of(known["connection"])
        return np.concatenate([known, more])

    def _by_link(self, records: SessionRecords) -> NDArray[np.void]:
        """The credit of each link."""
        credits, begins = np.repeat(NEW_CREDIT, len(records.links)), Begins(records.links)
        known = self.known.of(begins.ids)
        credits[begins.of(known["connection"]) + known["link"]] = known
        return credits

    def _store(self, records: SessionRecords, credits: NDArray[np.void], uses: NDArray[np.void]) -> None:
        """Replace what is known of the connections of `records`."""
        sessions, links = Begins(records.sessions), Begins(records.links)
        at = np.flatnonzero(credits["losses"] != NONE)
        known = credits[at]
        known["connection"] = records.links["connection"][at]
        known["link"] = at - links.of(known["connection"])
        uses["session"] -= sessions.of(uses["connection"])
        uses["link"] -= links.of(uses["connection"])
        self.uses.drop(sessions.ids)
        self.uses.add(uses)
        self.known.drop(links.ids)
        self.known.add(known)
