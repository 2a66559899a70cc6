"""What performatives of 1.0, and controls and commands of 0-10 say, as the kernels of `codec.conversation` read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.amqp.notes import CAPTURED_LATE, PEER_LATE
from codec.conversation.sessions import semantics
from codec.conversation.sessions.semantics import NAMES, OUTCOME_OF, ROLES, VERSIONS, names_with, outcome_numbers
from codec.conversation.sessions.state import NONE, Rows
from codec.sides import SIDES
from udfs.arrow.fields import Values, are_objects, counted, elements, fields, fields_and_insides, inside, values_of
from udfs.arrow.numbers import Numbers
from udfs.arrow.octets import hexed, valid_utf8
from udfs.arrow.rows import fixed, integers, is_among, is_noted, is_there, numbered, numbers_of, picked, values_cut
from udfs.conversation.properties import as_text

Integers = NDArray[np.int64]
OF_FRAMES = (
    "connection_id", "frame_no", "content_frame_no", "ts_ns", "channel", "sender", "version", "frame_type", "status",
    "name", "arguments", "properties", "error", "notes",
)  # fmt: skip
ARGUMENTS = {
    "name": "string", "remote_channel": "int", "handle": "bigint", "role": "boolean", "snd_settle_mode": "int",
    "rcv_settle_mode": "int", "initial_delivery_count": "bigint", "delivery_id": "bigint", "delivery_tag": "binary",
    "message_format": "bigint", "settled": "boolean", "resume": "boolean", "aborted": "boolean", "first": "bigint",
    "last": "bigint", "delivery_count": "bigint", "link_credit": "bigint", "incoming_window": "bigint",
    "outgoing_window": "bigint", "command_id": "bigint", "destination": "string", "queue": "string",
    "accept_mode": "int", "acquire_mode": "int",
    "exclusive": "boolean", "flow_mode": "int", "unit": "int", "value": "bigint", "code": "int",
    "error_code": "int", "description": "string",
}  # fmt: skip
CONTAINERS = ("source", "target", "state", "error", "value", "transfers", "commands", "xid")
SOURCE = {"address": "string", "distribution_mode": "string"}
TERMINUS = {"address": "string", "type": "string"}
OPERATION = {"type": "string", "txn_id": "binary", "fail": "boolean"}  # of a transaction coordinator
ERROR = {"condition": "string", "description": "string"}
STATES = tuple(OUTCOME_OF)
_OUTCOME_OF = outcome_numbers(STATES)
_BY_NAME = outcome_numbers(NAMES)


@dataclass(frozen=True)
class Chosen:
    """Which frames have a say: of a session version with a name that does something, or where frames may be missing.
    `losses`: (frame type, column, value): nothing is paired across, unless the column has this value (None: any)."""

    losses: tuple[tuple[str, str, str | None], ...]

    def lost(self, frames: pa.RecordBatch) -> NDArray[np.bool_]:
        """True where frames may be missing, so that nothing may be paired across."""
        lost = np.zeros(frames.num_rows, bool)
        for kind, column, value in self.losses:
            is_kind, there = is_among(frames["frame_type"], kind), is_there(frames[column])
            lost |= is_kind & (~there if value is None else there & ~is_among(frames[column], value))
        return lost

    def hidden(self, frames: pa.RecordBatch, lost: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """True where something may be missing that settles: in a loss, or in a frame that one tore."""
        torn = is_there(frames["status"]) & ~is_among(frames["status"], "ok")
        named = is_there(frames["name"])
        spans = is_among(frames["frame_type"], *(kind for kind, _, _ in self.losses))
        silent = np.where(named, is_among(frames["name"], *semantics.SETTLES), ~is_there(frames["arguments"]))
        hidden: NDArray[np.bool_] = lost | (torn & silent & ~spans & is_there(frames["frame_type"]))
        return hidden

    def rows(self, frames: pa.RecordBatch) -> tuple[pa.Int64Array, dict[str, Integers]]:
        """Places of the frames that have a say; `loss`, `hides`, `peer_late`, `late` of them."""
        of_version = is_among(frames["version"], *VERSIONS)
        lost = self.lost(frames)
        if not of_version.any():
            # Of no version: counts where one is known by other frames of the connection.
            hides, named = lost, np.zeros(len(lost), bool)
        else:
            hides = self.hidden(frames, lost)
            named = is_among(frames["name"], *NAMES) & is_there(frames["channel"])
        chosen = (of_version & (named | hides)) | (~is_there(frames["version"]) & lost)
        at = np.flatnonzero(chosen)
        marks = {
            "loss": lost,
            "hides": hides,
            "peer_late": is_noted(frames["notes"], PEER_LATE),
            "late": is_noted(frames["notes"], CAPTURED_LATE),
        }
        return pa.array(at), {name: fixed(mark[at].astype(np.int64)) for name, mark in marks.items()}


@dataclass(frozen=True)
class Performatives:
    """Frames that have a say, and what is read of them. `texts`: numbers of texts, shared by all batches."""

    frames: pa.RecordBatch
    marks: dict[str, Integers]
    texts: Numbers

    def rows(self) -> tuple[Rows, dict[str, pa.Array]]:
        """As the kernels read them; and the fields of their arguments."""
        frames = self.frames
        arguments, whole = values_of(frames["arguments"]), ~values_cut(frames)
        if not whole.all():
            arguments = arguments.at(arguments.starts, np.where(whole, arguments.stops, arguments.starts))
        said, within = fields_and_insides(arguments, ARGUMENTS, CONTAINERS)
        name = numbered(frames["name"], NAMES)
        name = np.where(is_among(frames["version"], *VERSIONS), name, 0)
        sender = is_among(frames["sender"], SIDES[1]).astype(np.int64)
        content = integers(frames["content_frame_no"], null=NONE)
        frame_no = integers(frames["frame_no"])
        begins = self._named("transfers") & (content == frame_no)
        source = fields_and_insides(within["source"], SOURCE, ("default_outcome", "filter"))
        target = fields(within["target"], TERMINUS)
        state = fields_and_insides(within["state"], {"type": "string", "txn_id": "binary"}, ("outcome",))
        error = fields(within["error"], ERROR)
        transactional = is_among(state[0]["type"], semantics.TRANSACTIONAL)
        excepts = self._named("refuses")
        number = pc.coalesce(said["delivery_id"], said["command_id"])
        operation = fields(inside(values_of(frames["properties"]), "body"), OPERATION)
        key, ends = self._transactions(begins, transactional, state[0]["txn_id"], operation, within["xid"], sender)
        outcome, about, final = self._outcomes(said, within, transactional, state, name, sender)
        texts = {
            "session_name": self._session_names(said["name"]),
            "condition": error["condition"],
            "description": pc.if_else(pa.array(excepts), said["description"], error["description"]),
            "link_name": said["name"],
            "source_address": source[0]["address"],
            "target_address": target["address"],
            "destination": said["destination"],
            "queue": said["queue"],
            "filters": objects_as_text(source[1]["filter"]),
        }
        numbers = {
            "channel": frames["channel"],
            "remote_channel": said["remote_channel"],
            "copies": pc.equal(source[0]["distribution_mode"], semantics.COPY),
            "code": pc.if_else(pa.array(excepts), said["error_code"], said["code"]),
            "number": number,
            "is_receiver": said["role"],
            **{
                name: said[name]
                for name in (
                    "incoming_window", "outgoing_window", "handle", "snd_settle_mode", "rcv_settle_mode",
                    "initial_delivery_count", "settled", "aborted", "delivery_count", "link_credit", "exclusive",
                    "acquire_mode", "flow_mode", "unit", "value",
                )
            },
        }  # fmt: skip
        truths = {
            "readable": is_there(frames["arguments"]) & whole,
            "error": excepts | are_objects(within["error"]),
            "source": are_objects(within["source"]),
            "coordinates": is_among(operation["type"], *semantics.COORDINATES),
            "coordinator": is_among(target["type"], semantics.COORDINATOR),
            "no_accept": numbers_of(said["accept_mode"]) == semantics.NO_ACCEPT,
        }
        range_at, range_first, range_last = self._ranges(said, within)
        as_receiver = numbers_of(said["role"].cast(pa.int64())) == 1
        receiver = np.where((sender == 0) != as_receiver, 1, 0)
        default = numbered(fields(source[1]["default_outcome"], {"type": "string"})["type"], STATES)
        return (
            Rows(
                connection_id=integers(frames["connection_id"]),
                frame_no=frame_no,
                ts_ns=integers(frames["ts_ns"]),
                sender=fixed(sender),
                name=fixed(name),
                content_frame_no=content,
                default_outcome=fixed(_OUTCOME_OF[default, receiver]),
                about=fixed(about),
                outcome=fixed(outcome),
                final=fixed(final),
                key=fixed(key),
                ends=fixed(ends),
                range_at=fixed(range_at),
                range_first=fixed(range_first),
                range_last=fixed(range_last),
                **self.marks,
                **{name: self.texts.of(column) for name, column in texts.items()},
                **{name: integers(column, null=NONE) for name, column in numbers.items()},
                **{name: fixed(truth.astype(np.int64)) for name, truth in truths.items()},
            ),
            said,
        )

    def _named(self, role: str) -> NDArray[np.bool_]:
        return is_among(self.frames["name"], *names_with(role))

    def _session_names(self, names: pa.Array) -> pa.Array:
        """Names of sessions are octets."""
        opens = pa.array(self._named("opens_session"))
        return valid_utf8(pc.if_else(opens, names, pa.scalar(None, pa.string())))

    def _transactions(
        self, begins: NDArray[np.bool_], transactional: NDArray[np.bool_], txn_id: pa.Array,
        operation: dict[str, pa.Array], xid: Values, sender: Integers,
    ) -> tuple[Integers, Integers]:  # fmt: skip
        """The transaction that each names, and how one ends that it asks to end.

        What the broker says of a publish in a transaction is about that publish, whose own transfer names the
        transaction.
        """
        name = self.frames["name"]
        by_client = self._named("states_outcome") & (sender == 0)
        inside_one = transactional & (begins | by_client)
        discharges = is_among(operation["type"], semantics.DISCHARGE)
        named = pc.if_else(pa.array(inside_one), txn_id, pa.scalar(None, pa.binary()))
        named = pc.if_else(pa.array(discharges & ~inside_one), operation["txn_id"], named)
        branch = fields(xid, {"format": "bigint", "global_id": "binary", "branch_id": "binary"})
        parts = (branch["format"].cast(pa.string()), hexed(branch["global_id"]), hexed(branch["branch_id"]))
        whole = pc.binary_join_element_wise(*(part.fill_null("") for part in parts), " ")
        on_branch = self._named("names_branch")
        key = self.texts.of(pc.if_else(pa.array(on_branch), whole, hexed(named)))
        ends = np.array([0, *(ROLES[each].get("ends_transaction", 0) for each in NAMES)])[numbered(name, NAMES)]
        failed = numbers_of(operation["fail"].cast(pa.int64())) == 1
        result = np.where(failed, semantics.ROLLS_BACK, semantics.COMMITS)
        return key, np.where(discharges & begins, result, ends)

    def _outcomes(
        self, said: dict[str, pa.Array], within: dict[str, Values], transactional: NDArray[np.bool_],
        state: tuple[dict[str, pa.Array], dict[str, Values]], name: Integers, sender: Integers,
    ) -> tuple[Integers, Integers, Integers]:  # fmt: skip
        """Of what settles: the outcome that it gives, whose messages it is about, and whether that is final.

        A disposition of the receiver is about what the other side sent, of the sender about its own.
        """
        disposes = self._named("states_outcome")
        settled_in = fields(state[1]["outcome"], {"type": "string"})["type"]
        terminal = numbered(pc.if_else(pa.array(transactional), settled_in, state[0]["type"]), STATES)
        role = integers(said["role"], null=NONE)
        outcome = np.where(disposes, np.where(role == 1, _OUTCOME_OF[terminal, sender], 0), _BY_NAME[name, sender])
        unroutable = self._named("may_return") & (sender == 1)
        unroutable &= np.isin(integers(said["code"], null=NONE), semantics.UNROUTABLE)
        status = integers(fields(within["value"], {"status": "int"})["status"], null=semantics.SUCCESS)
        failed = self._named("reports_status") & (status != semantics.SUCCESS)
        outcome = np.where(unroutable, semantics.OUTCOMES.index("returned") + 1, outcome)
        outcome = np.where(failed, semantics.OUTCOMES.index("nacked") + 1, outcome)
        about = np.where(disposes, np.select([role == 1, role == 0], [1 - sender, sender], NONE), 1 - sender)
        final = np.where(disposes, numbers_of(said["settled"].cast(pa.int64())), outcome != 0)
        return outcome, about, final

    def _ranges(self, said: dict[str, pa.Array], within: dict[str, Values]) -> tuple[Integers, Integers, Integers]:
        """The numbers that each names as ranges: where they begin by row, the first and the last of each."""
        completes = self._named("completes")
        sets = completes | self._named("names_transfers")
        transfers, commands = within["transfers"], within["commands"]
        arrays = transfers.at(
            np.where(completes, commands.starts, np.where(sets, transfers.starts, 0)),
            np.where(completes, commands.stops, np.where(sets, transfers.stops, 0)),
        )
        disposes = pa.array(self._named("states_outcome"))
        first = pc.if_else(disposes, said["first"], said["command_id"])
        last = pc.if_else(disposes, pc.coalesce(said["last"], said["first"]), said["command_id"])
        single = self._named("settles") & ~sets & is_there(first)
        counts = counted(arrays)
        each = fields(elements(arrays, counts), {"lower": "bigint", "upper": "bigint"})
        counts = np.where(single, 1, counts)
        of_sets = ~np.repeat(single, counts)
        found: list[Integers] = []
        for ends, own in (("lower", first), ("upper", last)):
            numbers = np.full(len(of_sets), NONE)
            numbers[of_sets] = integers(each[ends], null=NONE)
            numbers[~of_sets] = integers(own.filter(pa.array(single)), null=NONE)
            found.append(numbers)
        return np.concatenate([[0], np.cumsum(counts)]), found[0], found[1]


def objects_as_text(values: Values) -> pa.Array:
    """Objects as JSON; null where there is none. Few frames have one."""
    at = np.flatnonzero(are_objects(values))
    if not len(at):
        return pa.nulls(len(values.starts), pa.string())
    where = np.full(len(values.starts), -1)
    where[at] = np.arange(len(at))
    return picked(as_text(values.taken(at)), where)


def performatives(frames: pa.RecordBatch, chosen: Chosen, texts: Numbers) -> Performatives | None:
    """Those of `frames` that have a say; None if there are none."""
    at, marks = chosen.rows(frames)
    return Performatives(frames.select(OF_FRAMES).take(at), marks, texts) if len(at) else None
