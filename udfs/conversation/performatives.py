"""Columns of performatives of 1.0 and of controls and commands of 0-10, as the session tracker reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.sessions import semantics
from codec.conversation.sessions.semantics import NAMES, OUTCOME_OF, ROLES, VERSIONS, names_with, outcome_numbers
from codec.conversation.sessions.state import NONE, Rows
from codec.sides import SIDES
from udfs.arrow.dictionaries import Numbers
from udfs.arrow.fields import (
    Values,
    are_objects,
    counted,
    elements,
    fields,
    fields_and_insides,
    hexed,
    inside,
    valid_utf8,
    values_of,
)
from udfs.arrow.rows import fixed, integers, is_among, is_there, numbered, numbers_of, picked, values_cut
from udfs.conversation.frames import Losses, performative_frames
from udfs.conversation.properties import as_text

Integers = NDArray[np.int64]
FRAME_COLUMNS = (
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
class Performatives:
    """Frames that the tracker reads, with the `marks` of `performative_frames`; `texts` of all batches."""

    frames: pa.RecordBatch
    marks: dict[str, Integers]
    texts: Numbers

    def rows(self) -> tuple[Rows, dict[str, pa.Array]]:
        """Their columns for the kernels, and the fields of their arguments."""
        frames = self.frames
        values, whole = values_of(frames["arguments"]), ~values_cut(frames)
        if not whole.all():
            values = values.at(values.starts, np.where(whole, values.stops, values.starts))
        arguments, within = fields_and_insides(values, ARGUMENTS, CONTAINERS)
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
        number = pc.coalesce(arguments["delivery_id"], arguments["command_id"])
        operation = fields(inside(values_of(frames["properties"]), "body"), OPERATION)
        key, ends = self._transactions(begins, transactional, state[0]["txn_id"], operation, within["xid"], sender)
        outcome, about, final = self._outcomes(arguments, within, transactional, state, name, sender)
        texts = {
            "session_name": self._session_names(arguments["name"]),
            "condition": error["condition"],
            "description": pc.if_else(pa.array(excepts), arguments["description"], error["description"]),
            "link_name": arguments["name"],
            "source_address": source[0]["address"],
            "target_address": target["address"],
            "destination": arguments["destination"],
            "queue": arguments["queue"],
            "filters": objects_as_text(source[1]["filter"]),
        }
        numbers = {
            "channel": frames["channel"],
            "remote_channel": arguments["remote_channel"],
            "copies": pc.equal(source[0]["distribution_mode"], semantics.COPY),
            "code": pc.if_else(pa.array(excepts), arguments["error_code"], arguments["code"]),
            "number": number,
            "is_receiver": arguments["role"],
            **{
                name: arguments[name]
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
            "no_accept": numbers_of(arguments["accept_mode"]) == semantics.NO_ACCEPT,
        }
        range_at, range_first, range_last = self._ranges(arguments, within)
        as_receiver = numbers_of(arguments["role"].cast(pa.int64())) == 1
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
            arguments,
        )

    def _named(self, role: str) -> NDArray[np.bool_]:
        return is_among(self.frames["name"], *names_with(role))

    def _session_names(self, names: pa.Array) -> pa.Array:
        """Names of sessions, which are octets, as text."""
        opens = pa.array(self._named("opens_session"))
        return valid_utf8(pc.if_else(opens, names, pa.scalar(None, pa.string())))

    def _transactions(
        self, begins: NDArray[np.bool_], transactional: NDArray[np.bool_], txn_id: pa.Array,
        operation: dict[str, pa.Array], xid: Values, sender: Integers,
    ) -> tuple[Integers, Integers]:  # fmt: skip
        """The transaction that each names, and the result if it requests to end one.

        A disposition by the broker needs no transaction: the transfer of the publish names it.
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
        self, arguments: dict[str, pa.Array], within: dict[str, Values], transactional: NDArray[np.bool_],
        state: tuple[dict[str, pa.Array], dict[str, Values]], name: Integers, sender: Integers,
    ) -> tuple[Integers, Integers, Integers]:  # fmt: skip
        """Of settlements: the outcome, the side whose messages are settled, and whether the outcome is final.

        A disposition by the receiver settles messages of the other side, one by the sender its own.
        """
        disposes = self._named("states_outcome")
        settled_in = fields(state[1]["outcome"], {"type": "string"})["type"]
        terminal = numbered(pc.if_else(pa.array(transactional), settled_in, state[0]["type"]), STATES)
        role = integers(arguments["role"], null=NONE)
        outcome = np.where(disposes, np.where(role == 1, _OUTCOME_OF[terminal, sender], 0), _BY_NAME[name, sender])
        unroutable = self._named("may_return") & (sender == 1)
        unroutable &= np.isin(integers(arguments["code"], null=NONE), semantics.UNROUTABLE)
        status = integers(fields(within["value"], {"status": "int"})["status"], null=semantics.SUCCESS)
        failed = self._named("reports_status") & (status != semantics.SUCCESS)
        outcome = np.where(unroutable, semantics.OUTCOMES.index("returned") + 1, outcome)
        outcome = np.where(failed, semantics.OUTCOMES.index("nacked") + 1, outcome)
        about = np.where(disposes, np.select([role == 1, role == 0], [1 - sender, sender], NONE), 1 - sender)
        final = np.where(disposes, numbers_of(arguments["settled"].cast(pa.int64())), outcome != 0)
        return outcome, about, final

    def _ranges(self, arguments: dict[str, pa.Array], within: dict[str, Values]) -> tuple[Integers, Integers, Integers]:
        """The ranges of numbers that each names: where they begin by row, the first and the last of each."""
        completes = self._named("completes")
        sets = completes | self._named("names_transfers")
        transfers, commands = within["transfers"], within["commands"]
        arrays = transfers.at(
            np.where(completes, commands.starts, np.where(sets, transfers.starts, 0)),
            np.where(completes, commands.stops, np.where(sets, transfers.stops, 0)),
        )
        disposes = pa.array(self._named("states_outcome"))
        first = pc.if_else(disposes, arguments["first"], arguments["command_id"])
        last = pc.if_else(disposes, pc.coalesce(arguments["last"], arguments["first"]), arguments["command_id"])
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
    """Objects as JSON, else null. Few frames have one."""
    at = np.flatnonzero(are_objects(values))
    if not len(at):
        return pa.nulls(len(values.starts), pa.string())
    where = np.full(len(values.starts), -1)
    where[at] = np.arange(len(at))
    return picked(as_text(values.taken(at)), where)


def performatives(frames: pa.RecordBatch, losses: Losses, texts: Numbers) -> Performatives | None:
    """Those of `frames` that the session tracker reads; None if there are none."""
    at, marks = performative_frames(frames, losses)
    return Performatives(frames.select(FRAME_COLUMNS).take(at), marks, texts) if len(at) else None
