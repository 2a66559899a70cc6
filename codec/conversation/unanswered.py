"""What sides still owe when sessions and links end: rows of `codec.conversation.oddities`, from the records of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.conversation import oddities as O
from codec.conversation.session_state import CLIENT, NONE, SENDER, SERVER, SUBSCRIPTION, SessionRecords

Integers = NDArray[np.int64]
Records = NDArray[np.void]
# Of a session, by side: oddity, since when and by which frame the other side lets it wait, or the side the other one.
OF_SIDES = (
    (O.ECHO_UNANSWERED, "echo"), (O.WINDOW_CLOSED, "shut"), (O.SYNC_UNANSWERED, "sync"),
    (O.COMPLETED_UNANSWERED, "timely"), (O.RESULT_MISSING, "result"),
)  # fmt: skip
BY_ITSELF = (O.WINDOW_CLOSED,)


def owed_at_end(records: SessionRecords) -> Integers:
    """What is owed when connections end, as rows that wait; nothing in connections that lost bytes."""
    sessions, links = records.sessions, records.links
    found = [O.new_rows(0)]
    complete = sessions["lost_ns"] == 0
    for side, other in ((CLIENT, SERVER), (SERVER, CLIENT)):
        begun, ended = (sessions[name][:, other] for name in ("begun", "ended_ns"))
        frame = sessions["begun_frame"][:, side]
        waits = complete & (sessions["lasts"][:, side] == 1) & (begun == 0)
        found.append(_waiting(O.BEGIN_UNANSWERED, sessions, waits, other, sessions["begun_ns"][:, side], frame, frame))
        since, frame = sessions["ended_ns"][:, side], sessions["ended_frame"][:, side]
        waits = complete & (since != NONE) & (ended == NONE) & (begun == 1)
        found.append(_waiting(O.END_UNANSWERED, sessions, waits, other, since, frame))
        for name, of in OF_SIDES:
            since, frame = sessions[f"{of}_ns"][:, side], sessions[f"{of}_frame"][:, side]
            waits = complete & (since != NONE)
            if name == O.SYNC_UNANSWERED:
                waits &= sessions["sync_id"][:, side] != NONE
            found.append(_waiting(name, sessions, waits, side if name in BY_ITSELF else other, since, frame))
    since, frame = sessions["detach_ns"], sessions["detach_frame"]
    found.append(_waiting(O.DETACH_WAITS, sessions, complete & (since != NONE), 1 - sessions["detacher"], since, frame))
    if len(links):
        found.append(_of_links(links, sessions[links["session"]]))
    return np.concatenate(found)


def _of_links(links: Records, sessions: Records) -> Integers:
    """What is owed on links of 1.0 when their connections end."""
    of_1_0 = (links["kind"] != SUBSCRIPTION) & (sessions["lost_ns"] == 0)
    lasts = of_1_0 & (sessions["ended_ns"] == NONE).all(axis=1)
    sender = np.where(links["kind"] == SENDER, CLIENT, SERVER)
    at = np.arange(len(links))
    attached = links["attach_frame"]
    by_sender, by_receiver = attached[at, sender], attached[at, 1 - sender]
    found = []
    for side, other in ((CLIENT, SERVER), (SERVER, CLIENT)):
        since, frame = links["refused_ns"][:, side], attached[:, side]
        waits = of_1_0 & (since != NONE) & (sessions["ended_ns"][:, side] == NONE)
        found.append(_waiting(O.REFUSED_NOT_DETACHED, sessions, waits, side, since, frame, frame))
        since, frame = links["detach_ns"][:, side], links["detach_frame"][:, side]
        waits = lasts & (since != NONE) & (links["detach_ns"][:, other] == NONE) & (attached[:, other] != NONE)
        found.append(_waiting(O.DETACH_UNANSWERED, sessions, waits, other, since, frame, attached[:, side]))
    since, waits = links["awaited_ns"], of_1_0 & (links["awaiting"] > 0)
    found.append(_waiting(O.NEVER_SETTLED, sessions, waits, sender, since, by_sender, by_sender))
    since, frame = links["drain_ns"], links["drain_frame"]
    found.append(_waiting(O.DRAIN_UNANSWERED, sessions, lasts & (since != NONE), sender, since, frame, by_receiver))
    closed = of_1_0 & (sessions["left_frame"] > 0) & (sessions["ended_ns"][at, sender] == NONE)
    closed &= (links["transactions"] > 0) & (links["work"] > 0)
    rows = _waiting(O.TRANSACTION_OPEN, sessions, closed, sender, np.full(len(links), NONE), by_sender, by_sender)
    rows[:, O.OBSERVED], rows[:, O.EXPECTED] = links["work"][closed], links["transactions"][closed]
    return np.concatenate([*found, rows])


def unfinished(records: SessionRecords, over: NDArray[np.bool_]) -> Integers:
    """What was unfinished on the links of 1.0 that are `over` when their sessions ended."""
    links, sessions = records.links[over], records.sessions[records.links["session"][over]]
    sender, at = np.where(links["kind"] == SENDER, CLIENT, SERVER), np.arange(len(links))
    ended_ns, frame = sessions["ended_ns"][at, sender], sessions["ended_frame"][at, sender]
    ended = (links["kind"] != SUBSCRIPTION) & (ended_ns != NONE) & (links["attached"][at, sender] == 1)
    ended &= (sessions["lost_ns"] == 0) | (sessions["lost_ns"] >= ended_ns)
    found = []
    for name, mask, observed, expected, about in (
        (O.DELIVERY_UNFINISHED, links["open"] == 1, links["byte_count"], np.full(len(links), NONE),
         links["delivery_frame"]),
        (O.TRANSACTION_OPEN, (links["transactions"] > 0) & (links["work"] > 0), links["work"], links["transactions"],
         links["attach_frame"][at, sender]),
    ):  # fmt: skip
        mask = mask & ended
        rows = _waiting(name, sessions, mask, sender, np.full(len(links), NONE), frame, about)
        rows[:, O.TS] = ended_ns[mask]
        rows[:, O.OBSERVED], rows[:, O.EXPECTED] = observed[mask], expected[mask]
        found.append(rows)
    return np.concatenate(found)


def _waiting(
    name: int, sessions: Records, mask: NDArray[np.bool_], side: Integers | int, since_ns: Integers, frame: Integers,
    about: Integers | int = NONE,
) -> Integers:  # fmt: skip
    """A row for each chosen session: `side` lets the other one wait since `since_ns`, when it sent `frame`."""
    at = np.flatnonzero(mask)
    rows = np.full((len(at), len(O.CELLS)), NONE)
    rows[:, O.CONNECTION], rows[:, O.NAME] = sessions["connection"][at], name
    rows[:, O.CHANNEL], rows[:, O.INCARNATION] = sessions["channel"][at], sessions["incarnation"][at]
    for cell, values in ((O.SIDE, side), (O.SINCE, since_ns), (O.FRAME_NO, frame), (O.ABOUT, about)):
        rows[:, cell] = np.broadcast_to(values, len(sessions))[at]
    rows[:, O.MISSING] = 0
    return rows
