"""Columns of performatives of 1.0 and of controls and commands of 0-10, as the session tracker reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation import session_state as semantics
from codec.conversation.session_state import (
    NAMES,
    NO_LIMIT,
    NONE,
    OUTCOME_OF,
    REJECTED,
    RELEASED,
    REQUIRED,
    TAKES_BACK,
    VERSIONS,
    Rows,
    compiled_roles,
    outcome_numbers,
)
from codec.memory import as_kernel_array, as_records
from codec.names import SIDES
from codec.protocol.rows import NAMES as DECODED_NAMES
from codec.protocol.versions import E_UNEXPECTED_SEGMENT, ERRORS
from udfs.arrow.arrays import (
    concat_ws,
    index_in,
    is_in,
    is_valid,
    take_or_null,
    to_int64,
)
from udfs.arrow.fields import (
    Fields,
    Values,
    are_objects,
    counted,
    elements,
    hashed,
    inside,
    to_hex,
    valid_utf8,
    values_of,
)
from udfs.arrow.fields import texts as strings
from udfs.arrow.types import Numbers
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.methods import performative_frames
from udfs.conversation.properties import as_text

Integers = NDArray[np.int64]
ARGUMENTS = {
    "name": "string", "remote_channel": "int", "handle": "bigint", "role": "boolean", "snd_settle_mode": "int",
    "rcv_settle_mode": "int", "initial_delivery_count": "bigint", "delivery_id": "bigint", "delivery_tag": "binary",
    "message_format": "bigint", "settled": "boolean", "more": "boolean", "resume": "boolean", "aborted": "boolean",
    "closed": "boolean", "incomplete_unsettled": "boolean", "sync": "boolean",
    "first": "bigint", "last": "bigint", "delivery_count": "bigint", "link_credit": "bigint",
    "incoming_window": "bigint", "outgoing_window": "bigint", "next_incoming_id": "bigint",
    "next_outgoing_id": "bigint", "drain": "boolean", "command_id": "bigint", "destination": "string",
    "queue": "string", "accept_mode": "int", "acquire_mode": "int", "exclusive": "boolean", "flow_mode": "int",
    "unit": "int", "value": "bigint", "code": "int", "error_code": "int", "description": "string", "timeout": "bigint",
}  # fmt: skip
CONTAINERS = ("source", "target", "state", "error", "value", "transfers", "commands", "xid", "unsettled")
SOURCE = {"address": "string", "distribution_mode": "string"}
TERMINUS = {"address": "string", "type": "string"}
OPERATION = {"type": "string", "txn_id": "binary", "fail": "boolean"}  # of a transaction coordinator
ERROR = {"condition": "string", "description": "string"}
STATE = {"type": "string", "txn_id": "binary"}
BRANCH = {"format": "bigint", "global_id": "binary", "branch_id": "binary"}
TYPE = {"type": "string"}
READ = {*ARGUMENTS, *CONTAINERS}
EMPTY_OBJECT = 3  # bytes: a map without entries
STATES = tuple(OUTCOME_OF)
# Arguments of few frames: those with a role of FEW, and flows without a handle.
FEW = ("of_connection", "opens_session", "attaches", "points")
FEW_ARGUMENTS = {
    "handle_max": "bigint", "channel_max": "bigint", "max_frame_size": "bigint", "max_message_size": "bigint",
    "command_offset": "bigint", "force": "boolean", "role": "boolean", "delivery_count": "bigint",
    "link_credit": "bigint", "available": "bigint", "name": "string",
}  # fmt: skip
NODE = {"address": "string", "dynamic": "boolean"}
SYMBOLS = tuple(f"amqp:{name}:list" for name in STATES)
_ROLES = compiled_roles()
_ARE_FEW = np.logical_or.reduce([_ROLES[role] != 0 for role in FEW])
_OUTCOME_OF = outcome_numbers(STATES)
_BY_NAME = outcome_numbers(NAMES)
# The number of each of the decoder's names in NAMES, from 1 on, and at last of no name; 0: it is not there.
_NAME_NUMBERS = np.array([NAMES.index(name) + 1 if name in NAMES else 0 for name in (*DECODED_NAMES, "")])


@dataclass(frozen=True)
class Performatives:
    """Frames that the tracker reads, those at `at` in `batch`: their `arguments`, also as `values`, the sections of
    messages with `commands` to transaction coordinators, and `marks`; `texts` of all batches."""

    batch: FrameBatch
    at: Integers
    values: Values
    arguments: Fields
    commands: Values
    marks: dict[str, NDArray[np.bool_] | Integers]
    texts: Numbers

    def rows(self) -> Rows:
        """Their columns for the kernels."""
        arguments, name, sender = self.arguments, self.names, self.are("sender", SIDES[1]).astype(np.int64)
        content, frame_no = self.cells("content_frame_no"), self.cells("frame_no")
        # A transfer of 0-10 in several frames: the last one has its arguments, the first one begins the message.
        carries = self._named("transfers") & self.are("version", *semantics.IN_SEGMENTS) & (content != NONE)
        frame_no = as_kernel_array(np.where(carries, content, frame_no))
        begins = self._named("transfers") & (content == frame_no)
        source = Fields(arguments.inside("source"), SOURCE, ("default_outcome", "filter", "capabilities"))
        target = Fields(arguments.inside("target"), TERMINUS, ("capabilities",))
        state = Fields(arguments.inside("state"), STATE, ("outcome", "error"))
        errors = arguments.inside("error")
        error = Fields(errors, ERROR)
        operation = Fields(inside(self.commands, "body"), OPERATION)
        kinds = state.column("type")
        states = index_in(kinds, (*STATES, semantics.TRANSACTIONAL))
        transactional, declares = states > len(STATES), states == STATES.index(semantics.DECLARED) + 1
        excepts = self._named("refuses")
        texts = {
            "session_name": self._session_names(arguments),
            "condition": error.column("condition"),
            "description": pc.if_else(pa.array(excepts), arguments.column("description"), error.column("description")),
            "link_name": arguments.column("name"),
            "source_address": source.column("address"),
            "target_address": target.column("address"),
            "destination": arguments.column("destination"),
            "queue": arguments.column("queue"),
            "filters": objects_as_text(source.inside("filter")),
            "declared": to_hex(pc.if_else(pa.array(declares), state.column("txn_id"), pa.scalar(None, pa.binary()))),
        }
        distribution = source.column("distribution_mode")
        number, tag = arguments.numbers("delivery_id", NONE), arguments.column("delivery_tag")
        numbers = {
            "copies": np.where(is_valid(distribution), is_in(distribution, semantics.COPY), NONE)
            + self._are_topics(source, target, sender) * semantics.OF_TOPIC,
            "code": np.where(excepts, arguments.numbers("error_code", NONE), arguments.numbers("code", NONE)),
            "timeout": arguments.numbers("timeout", NO_LIMIT),
            "number": np.where(number == NONE, arguments.numbers("command_id", NONE), number),
            "tag": np.where(is_valid(tag), hashed(tag), 0),
            "tag_size": arguments.sizes("delivery_tag", NONE),
            "is_receiver": arguments.numbers("role", NONE),
            **{
                each: arguments.numbers(each, NONE)
                for each in (
                    "remote_channel", "incoming_window", "outgoing_window", "handle", "snd_settle_mode",
                    "rcv_settle_mode", "initial_delivery_count", "settled", "more", "aborted", "resume",
                    "delivery_count", "closed", "link_credit", "exclusive", "acquire_mode", "flow_mode", "unit",
                    "value", "sync",
                )
            },
        }  # fmt: skip
        truths = {
            "readable": arguments.are_there,
            "error": excepts | are_objects(errors),
            "source": are_objects(arguments.inside("source")),
            "coordinates": is_in(operation.column("type"), *semantics.COORDINATES),
            "coordinator": is_in(target.column("type"), semantics.COORDINATOR),
            "lists_all": self._lists_all(),
            "no_accept": arguments.numbers("accept_mode", NONE) == semantics.NO_ACCEPT,
            "continues": self.are("error", str(ERRORS[E_UNEXPECTED_SEGMENT])),
        }
        key, ends = self._transactions(begins, transactional, state, operation, sender)
        terminal = self._terminal(state, states)
        outcome, about, final, by_sender = self._outcomes(state, terminal, sender)
        error_text, info = self._outcome_texts(state, states)
        receiver = np.where((sender == 0) != (arguments.numbers("role", NONE) == 1), 1, 0)
        range_at, range_first, range_last = self._ranges(receiver)
        default = index_in(Fields(source.inside("default_outcome"), TYPE).column("type"), STATES)
        continued = numbers["more"] == 1
        if self._named("transfers").any():
            continued |= content != self.cells("frame_no")
        flows = self._named("states_credit") | self._named("opens_session")
        found = numbers | truths | self.marks | {
            **self._of_some(continued, "message_format"),
            **self._of_some(flows, "drain", "next_incoming_id", "next_outgoing_id"),
            "state": np.where(is_valid(kinds), terminal, NONE),
            "sender": sender, "name": name, "default_outcome": _OUTCOME_OF[default, receiver], "about": about,
            "outcome": outcome, "final": final, "by_sender": by_sender, "error_text": error_text, "info": info,
            "key": key, "ends": ends, "range_at": range_at,
            "range_first": range_first, "range_last": range_last,
        }  # fmt: skip
        return Rows(
            frame_no=frame_no,
            **{each: as_kernel_array(self.cells(each)) for each in FROM_CELLS},
            **self._of_few(numbers["handle"]),
            file=as_kernel_array(self.batch.files[self.at]),
            **{each: self.texts.of(column) for each, column in texts.items()},
            **{each: as_kernel_array(column.astype(np.int64, copy=False)) for each, column in found.items()},
        )

    def cells(self, name: str) -> Integers:
        """A column of the frames as `FrameBatch.cells`."""
        return self._of(self.batch.cells(name))

    def are(self, name: str, *values: str) -> NDArray[np.bool_]:
        """True where the text in column `name` is one of `values`."""
        return self._of(self.batch.are(name, *values))

    def _of(self, column: NDArray[Any]) -> NDArray[Any]:
        """The values of the frames among those of all of the batch."""
        return column if len(self.at) == len(column) else column[self.at]

    @cached_property
    def names(self) -> Integers:
        """Their names, as numbers of semantics.NAMES from 1 on; 0 for others."""
        names: Integers = np.where(self.are("version", *VERSIONS), _NAME_NUMBERS[self.cells("name")], 0)
        return names

    @cached_property
    def _with_roles(self) -> dict[str, NDArray[np.bool_]]:
        return {}

    def _named(self, role: str) -> NDArray[np.bool_]:
        """bool (n,): rows whose name has this role (semantics.ROLES); not to be changed."""
        if role not in self._with_roles:
            self._with_roles[role] = (_ROLES[role] != 0)[self.names]
        return self._with_roles[role]

    def _session_names(self, arguments: Fields) -> pa.Array:
        """Names of sessions, which are bytes, as text."""
        opens = self._named("opens_session")
        if not opens.any():
            return pa.nulls(len(opens), pa.string())
        return valid_utf8(pc.if_else(pa.array(opens), arguments.column("name"), pa.scalar(None, pa.string())))

    def _transactions(
        self, begins: NDArray[np.bool_], transactional: NDArray[np.bool_], state: Fields, operation: Fields,
        sender: Integers,
    ) -> tuple[Integers, Integers]:  # fmt: skip
        """The transaction that each names, and the result if it requests to end one.

        A disposition by the broker needs no transaction: the transfer of the publish names it.
        """
        ends = _ROLES["ends_transaction"][self.names]
        by_client = self._named("states_outcome") & (sender == 0)
        inside_one = transactional & (begins | by_client)
        discharges = is_in(operation.column("type"), semantics.DISCHARGE)
        on_branch = self._named("names_branch")
        if not (inside_one | discharges | on_branch).any():
            return np.zeros(len(begins), np.int64), ends
        named = pc.if_else(pa.array(inside_one), state.column("txn_id"), pa.scalar(None, pa.binary()))
        named = pc.if_else(pa.array(discharges & ~inside_one), operation.column("txn_id"), named)
        branch = Fields(self.arguments.inside("xid"), BRANCH).columns()
        parts = (branch["format"].cast(pa.string()), to_hex(branch["global_id"]), to_hex(branch["branch_id"]))
        whole = pc.binary_join_element_wise(*(part.fill_null("") for part in parts), " ")
        key = self.texts.of(pc.if_else(pa.array(on_branch), whole, to_hex(named)))
        result = np.where(operation.numbers("fail", NONE) == 1, semantics.ROLLS_BACK, semantics.COMMITS)
        return key, np.where(discharges, result, ends)

    def _of_some(self, needed: NDArray[np.bool_], *names: str) -> dict[str, Integers]:
        """Arguments that only some frames need, if there are any."""
        if needed.any():
            return {name: self.arguments.numbers(name, NONE) for name in names}
        return dict.fromkeys(names, np.full(len(needed), NONE))

    def _of_few(self, handle: Integers) -> dict[str, NDArray[Any]]:
        """Columns `few` and `at_few`: nothing of them is read of other rows."""
        at = np.flatnonzero(_ARE_FEW[self.names] | (self._named("states_credit") & (handle == NONE)))
        found = np.repeat(semantics.OF_FEW, max(len(at), 1))
        at_few = np.zeros(len(handle), np.int64)
        if len(at):
            at_few[at] = np.arange(len(at))
            own = Fields(self.values.rows_at(at), FEW_ARGUMENTS, ("source", "target", "unsettled"))
            source, target, unsettled = (own.inside(name) for name in ("source", "target", "unsettled"))
            nodes = Fields(source, NODE, ("outcomes",)), Fields(target, NODE)
            for name in ("handle_max", "channel_max", "max_frame_size", "max_message_size", "command_offset", "force"):
                found[name] = own.numbers(name, NONE)
            of_source = own.numbers("role", NONE) == 1  # a receiver asks for the address of the source
            asks = [(node.numbers("dynamic", 0) == 1) & is_valid(node.column("address")) for node in nodes]
            found["dynamic"] = np.where(of_source, *asks)
            for name in ("delivery_count", "link_credit", "available"):
                found["link_fields"] |= own.numbers(name, NONE) != NONE
            found["target"] = are_objects(target)
            found["outcomes"] = allowed_outcomes(nodes[0].inside("outcomes"))
            found["lists"] = unsettled.stops > unsettled.starts + 1
            found["name_hash"] = hashed(own.column("name"))
        return {"few": as_records(found), "at_few": as_kernel_array(at_few)}

    def _terminal(self, state: Fields, states: Integers) -> Integers:
        """The outcome in each delivery state, as a number of STATES from 1 on; 0 for none."""
        settled_in = index_in(Fields(state.inside("outcome"), TYPE).column("type"), STATES)
        found: Integers = np.where(states > len(STATES), settled_in, states)
        return found

    def missing(self) -> tuple[Integers, Integers]:
        """The frames of 0-10 that lack fields which they must have, and the names of these, as texts."""
        rows, names = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        there, intact = np.bincount(self.names, minlength=len(REQUIRED)), self.are("status", "ok")
        for number, wanted in enumerate(REQUIRED):
            if not wanted or not there[number]:
                continue
            at = np.flatnonzero((self.names == number) & intact)
            if {*wanted} <= READ:
                lacks = np.array([~self.arguments.there(field)[at] for field in wanted])
            else:
                own = Fields(self.values.rows_at(at), {}, wanted)
                lacks = np.array([~own.there(field) for field in wanted])
            bits = (1 << np.arange(len(wanted))) @ lacks
            lacking = np.flatnonzero(bits)
            kinds, of = np.unique(bits[lacking], return_inverse=True)
            texts = (", ".join(field for k, field in enumerate(wanted) if kind >> k & 1) for kind in kinds.tolist())
            rows.append(at[lacking])
            names.append(np.array(self.texts.ids_for(texts), np.int64)[of])
        return np.concatenate(rows), np.concatenate(names)

    def _outcomes(self, state: Fields, terminal: Integers, sender: Integers) -> tuple[Integers, ...]:
        """Of settlements: the outcome, the side whose messages are settled, whether the outcome is final, and whether
        it is one of the server about what it has sent itself.

        A disposition by the receiver settles messages of the other side, one by the sender its own.
        """
        arguments, disposes = self.arguments, self._named("states_outcome")
        role = arguments.numbers("role", NONE)
        by_name = _BY_NAME[self.names, sender]
        by_receiver = np.where(self._named("transfers"), 1 - sender, sender)  # of the messages
        by_sender = disposes & (role == 0) & (sender == 1) & np.isin(_OUTCOME_OF[terminal, 0], TAKES_BACK)
        declared = np.where(
            (role == 1) | ~disposes, _OUTCOME_OF[terminal, by_receiver], by_sender * self._returns(state, terminal)
        )
        outcome = np.where(disposes | self._named("transfers"), declared, by_name)
        unroutable = self._named("may_return") & (sender == 1)
        unroutable &= np.isin(arguments.numbers("code", NONE), semantics.UNROUTABLE)
        status = Fields(arguments.inside("value"), {"status": "int"}).numbers("status", null=semantics.SUCCESS)
        outcome = np.where(unroutable, semantics.OUTCOMES.index("returned") + 1, outcome)
        for number, name in semantics.OUTCOME_OF_STATUS.items():
            decided = self._named("reports_status") & (status == number)
            outcome = np.where(decided, semantics.OUTCOMES.index(name) + 1, outcome)
        about = np.where(disposes, np.select([role == 1, role == 0], [1 - sender, sender], NONE), 1 - sender)
        return outcome, about, np.where(disposes, arguments.numbers("settled", null=0), outcome != 0), by_sender

    def _outcome_texts(self, state: Fields, states: Integers) -> tuple[Integers, Integers]:
        """The error that an outcome states, and its info or its annotations as JSON; 0 for none."""
        own, within = self.arguments.inside("state"), state.inside("outcome")
        in_transaction = states > len(STATES)
        outcome = own.at(*(np.where(in_transaction, *ends) for ends in zip(within[1:3], own[1:3], strict=True)))
        found = np.zeros((2, len(states)), np.int64)
        have_texts = [STATES.index(name) + 1 for name in semantics.HAVE_TEXTS]
        rows = np.flatnonzero(np.isin(states, have_texts) | in_transaction)
        if len(rows):
            fields_of = Fields(outcome.rows_at(rows), {}, ("error", "message_annotations"))
            error = Fields(fields_of.inside("error"), ERROR, ("info",))
            info = (
                objects_as_text(values) for values in (error.inside("info"), fields_of.inside("message_annotations"))
            )
            found[0, rows] = self.texts.of(concat_ws(list(error.columns().values()), ": "))
            found[1, rows] = self.texts.of(pc.coalesce(*info))
        return found[0], found[1]

    def _are_topics(self, source: Fields, target: Fields, sender: Integers) -> NDArray[np.bool_]:
        """Which rows say by its capabilities that the node of the broker is a topic: the target of links on which the
        client sends, else the source."""
        own, other = source.inside("capabilities"), target.inside("capabilities")
        client_sends = (self.arguments.numbers("role", NONE) == 1) == (sender == 1)
        values = own.at(*(np.where(client_sends, *ends) for ends in zip(other[1:3], own[1:3], strict=True)))
        found = self._named("attaches") & (values.stops > values.starts)
        rows = np.flatnonzero(found)
        if len(rows):
            values = values.rows_at(rows)
            counts = counted(values)
            several = is_in(strings(elements(values, counts)), *semantics.TOPICS)
            of_several = np.bincount(np.repeat(rows, counts)[several], minlength=len(found)) > 0
            found[rows] = is_in(strings(values), *semantics.TOPICS) | of_several[rows]
        return found

    def _returns(self, state: Fields, terminal: Integers) -> Integers:
        """What a server's outcome of its own delivery makes of it: one that is too late to be settled is released."""
        outcome: Integers = _OUTCOME_OF[terminal, 0]
        rejected = outcome == REJECTED
        if not rejected.any():
            return outcome
        condition = Fields(state.inside("error"), {"condition": "string"}).column("condition")
        found: Integers = np.where(rejected & is_in(condition, *semantics.TOO_LATE), RELEASED, outcome)
        return found

    def _lists_all(self) -> NDArray[np.bool_]:
        """Which rows are attaches with a complete map of unsettled deliveries. Its keys are binary, so that a map with
        entries is decoded as an array of pairs."""
        unsettled = self.arguments.inside("unsettled")
        sizes = unsettled.stops - unsettled.starts
        maps = self._named("attaches") & (sizes > 0)
        if not maps.any():
            return maps
        maps &= (counted(unsettled) > 0) | (are_objects(unsettled) & (sizes == EMPTY_OBJECT))
        maps &= self.arguments.numbers("incomplete_unsettled", NONE) != 1
        return maps & self.are("status", "ok")

    def _ranges(self, receiver: Integers) -> tuple[Integers, Integers, Integers]:
        """The ranges of numbers in each row: where they begin by row, the first and the last number of each. An attach
        has the tag and the outcome of each unsettled delivery in their place; the `receiver` has given the outcome."""
        arguments, completes = self.arguments, self._named("names_commands")
        unsettled = arguments.inside("unsettled")
        lists = self._named("attaches") & (unsettled.stops > unsettled.starts)
        sets = completes | self._named("names_transfers") | lists
        disposes = self._named("states_outcome")
        command = arguments.numbers("command_id", NONE)
        first, last = arguments.numbers("first", NONE), arguments.numbers("last", NONE)
        last = np.where(disposes, np.where(last == NONE, first, last), command)
        first = np.where(disposes, first, command)
        single = self._named("settles") & ~sets & (first != NONE)
        if not sets.any():
            return np.concatenate([[0], np.cumsum(single)]), first[single], last[single]
        transfers, commands = arguments.inside("transfers"), arguments.inside("commands")
        arrays = transfers.at(
            np.select([completes, lists, sets], [commands.starts, unsettled.starts, transfers.starts]),
            np.select([completes, lists, sets], [commands.stops, unsettled.stops, transfers.stops]),
        )
        counts = counted(arrays)
        each = Fields(elements(arrays, counts), {"lower": "bigint", "upper": "bigint", "key": "binary"}, ("value",))
        listed = Fields(each.inside("value"), TYPE).column("type")
        outcomes = _OUTCOME_OF[index_in(listed, STATES), np.repeat(receiver, counts)]
        of_lists = {"lower": hashed(each.column("key")), "upper": outcomes}
        own_counts, counts = counts, np.where(single, 1, counts)
        of_sets = ~np.repeat(single, counts)
        found: list[Integers] = []
        for ends, own in (("lower", first), ("upper", last)):
            numbers = np.full(len(of_sets), NONE)
            numbers[of_sets] = np.where(np.repeat(lists, own_counts), of_lists[ends], each.numbers(ends, NONE))
            numbers[~of_sets] = own[single]
            found.append(numbers)
        return np.concatenate([[0], np.cumsum(counts)]), found[0], found[1]


FROM_CELLS = ("connection_id", "ts_ns", "channel", "content_frame_no", "packet_no", "size", "payload_size", "rtt_ns")


def allowed_outcomes(arrays: Values) -> Integers:
    """The outcomes that sources allow, as bits; 0 where a source names none."""
    counts = counted(arrays)
    found = np.zeros(len(counts), np.int64)
    symbols = index_in(strings(elements(arrays, counts)), SYMBOLS)
    bits = np.where(symbols > 0, 1 << np.maximum(symbols - 1, 0), 0)
    np.bitwise_or.at(found, np.repeat(np.arange(len(counts)), counts), bits)
    return found


def objects_as_text(values: Values) -> pa.Array:
    """Objects as JSON, else null. Few frames have one."""
    at = np.flatnonzero(are_objects(values))
    if not len(at):
        return pa.nulls(len(values.starts), pa.string())
    where = np.full(len(values.starts), -1)
    where[at] = np.arange(len(at))
    return take_or_null(as_text(values.rows_at(at)), where)


def performatives(batch: FrameBatch, texts: Numbers) -> Performatives | None:
    """Those of a batch that the session tracker reads; None if there are none."""
    is_read, hides = performative_frames(batch)
    at = np.flatnonzero(is_read)
    if not len(at):
        return None
    arguments, properties = (values_of(batch[name]).rows_at(at) for name in ("arguments", "properties"))
    cut = batch.cut[at]
    if cut.any():
        arguments = arguments.at(arguments.starts, np.where(cut, arguments.starts, arguments.stops))
    carries_command = is_valid(batch.transaction_commands)[at]  # others need not be read
    commands = properties.at(properties.starts, np.where(carries_command, properties.stops, properties.starts))
    lost = batch.lost
    loss = np.where(lost, np.maximum(to_int64(batch["first_ts_ns"]), 1), 0) if lost.any() else lost
    marks = {"loss": loss, "hides": hides, **batch.late}
    of_rows: dict[str, NDArray[np.bool_] | Integers] = {name: marked[at] for name, marked in marks.items()}
    of_rows["asks"] = np.where(cut, 0, batch.requested_exchange[at])
    return Performatives(batch, at, arguments, Fields(arguments, ARGUMENTS, CONTAINERS), commands, of_rows, texts)
