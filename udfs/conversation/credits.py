"""Credit of subscriptions of 0-10: changes of it are applied once nothing before them can change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions import semantics
from codec.conversation.sessions.credit import CREDIT, NEW_CREDIT, Changes, apply_changes
from codec.conversation.sessions.events import places_in
from codec.conversation.sessions.state import CLIENT, COMPLETIONS, MAPS, NONE, SERVER, SessionRecords
from codec.conversation.settlement import Settled
from codec.conversation.states import blank
from codec.memory import as_records, fixed
from codec.stalls import LINK, NO_CREDIT, last_rows, new_rows
from udfs.arrow.rows import Index
from udfs.conversation.frames import FrameBatch
from udfs.conversation.places import Begins
from udfs.conversation.states import ConnectionRecords

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]
# A transfer that has used credit and not returned it, or (octets NONE) a flush that is not completed.
USE = blank("connection session link frame_no octets").dtype
OCTETS = blank("connection frame_no size").dtype
OCTETS_OF_FRAMES = {"connection": "connection_id", "frame_no": "content_frame_no", "size": "payload_size"}
NOTHING = np.zeros(0, np.int64)
LATER = np.iinfo(np.int64).max


class Octets(ConnectionRecords):
    """The octets of credit that messages use, until the changes of credit that use them are applied."""

    def __init__(self) -> None:
        super().__init__(OCTETS)

    def add_frames(self, frames: FrameBatch) -> None:
        """Add those of the messages in these frames."""
        counts = frames.are("version", *semantics.COUNTS_OCTETS) & frames.are("frame_type", *semantics.OCTETS_OF)
        counts &= frames.have("content_frame_no") & frames.have("payload_size")
        if counts.any():
            at = np.flatnonzero(counts)
            octets = np.zeros(len(at), OCTETS)
            for field, name in OCTETS_OF_FRAMES.items():
                octets[field] = frames.cells(name)[at]
            self.add(octets)

    def by_change(self, changes: NDArray[np.void]) -> tuple[Integers, Integers]:
        """The octets that each change of credit uses; the change that uses each of `all()`, -1 for none."""
        octets, used = self.all(), np.zeros(len(changes), np.int64)
        at = Index(changes["connection"], changes["frame_no"]).find(octets["connection"], octets["frame_no"])
        np.add.at(used, at[at >= 0], octets["size"][at >= 0])
        return used, at


class Credits:
    """`uses`, and `known`: the credit of subscriptions after the changes that were applied; places of sessions and
    links count within each connection."""

    def __init__(self) -> None:
        self.uses, self.known = ConnectionRecords(USE), ConnectionRecords(CREDIT)
        self.stalls: list[Integers] = []  # rows of `codec.stalls`, with indices of links in their records

    def apply(
        self, records: SessionRecords, completed: Settled, octets: Integers, ended: bool = False
    ) -> tuple[Truths, Truths]:
        """Apply the changes before which no other can come -> which changes were applied, and which of the `completed`
        transfers have returned their credit. `octets`: those that each change uses; the last transfer of a session may
        get more, unless both sides have ended it, or (`ended`) its connection has."""
        sessions, changes = records.sessions, records.changes
        sent = changes["sent"] == 1
        limit = np.full(len(sessions), -1)
        np.maximum.at(limit, changes["session"][sent], changes["frame_no"][sent])
        goes_on = not ended
        goes_on &= (sessions["close_client_hidden"] == NONE) | (sessions["close_server_hidden"] == NONE)
        limit = np.where((limit < 0) | ~goes_on, LATER, limit)
        now = changes["frame_no"] < limit[changes["session"]]
        uses = self._uses(records, now & (sent | (changes["zeroes"] == semantics.FLUSHES)), octets)
        sender = np.where(uses["octets"] == NONE, CLIENT, SERVER)
        end = places_in(completed, uses["session"] * MAPS + COMPLETIONS + sender, uses["frame_no"])
        back = end != NONE
        back[back] = completed.settled_frame_no[end[back]] < limit[uses["session"][back]]
        returned, over = end[back], np.zeros(len(completed.frame_no), bool)
        over[returned] = True
        flushed = uses["octets"][back] == NONE
        own, nothing = changes[now], np.zeros(len(returned), np.int64)
        columns = {
            "link": (own["link"], uses["link"][back]),
            "frame_no": (own["frame_no"], completed.settled_frame_no[returned]),
            "ts_ns": (own["ts_ns"], completed.settled_ns[returned]),
            "messages": (own["messages"], np.where(flushed, 0, 1)),
            "octets": (np.where(sent, -octets, changes["octets"])[now], np.where(flushed, 0, uses["octets"][back])),
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
        changes_in_order = Changes(*(fixed(whole[name][order]) for name in Changes._fields))
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

    def _uses(self, records: SessionRecords, new: Truths, octets: Integers) -> NDArray[np.void]:
        """The uses of the connections of `records`, and those of `new` changes; with places within all records."""
        changes = records.changes[new]
        more = np.zeros(len(changes), USE)
        for field in ("connection", "session", "link", "frame_no"):
            more[field] = changes[field]
        more["octets"] = octets[new] if len(octets) else 0
        more["octets"][changes["zeroes"] == semantics.FLUSHES] = NONE
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
