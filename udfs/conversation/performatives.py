"""Columns of performatives of 1.0 and of controls and commands of 0-10, as the session tracker reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    TAKES_BACK,
    VERSIONS,
    Rows,
    compiled_roles,
    outcome_numbers,
)
from codec.memory import as_kernel_array
from codec.names import SIDES
from codec.protocol.rows import NAMES as DECODED_NAMES
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
from udfs.arrow.rows import (
    concat_ws,
    index_in,
    is_in,
    is_valid,
    take_or_null,
)
from udfs.arrow.types import Numbers
from udfs.conversation.frames import FrameBatch
from udfs.conversation.methods import performative_frames
from udfs.conversation.properties import as_text

Integers = NDArray[np.int64]
ARGUMENTS = {
    "name": "string", "remote_channel": "int", "handle": "bigint", "role": "boolean", "snd_settle_mode": "int",
    "rcv_settle_mode": "int", "initial_delivery_count": "bigint", "delivery_id": "bigint", "delivery_tag": "binary",
    "message_format": "bigint", "settled": "boolean", "more": "boolean", "resume": "boolean", "aborted": "boolean",
    "closed": "boolean", "incomplete_unsettled": "boolean", "sync": "boolean",
    "first": "bigint", "last": "bigint", "delivery_count": "bigint", "link_credit": "bigint",
    "incoming_window": "bigint", "outgoing_window": "bigint", "command_id": "bigint", "destination": "string",
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
EMPTY_OBJECT = 3  # bytes: a map without entries
STATES = tuple(OUTCOME_OF)
_ROLES = compiled_roles()
_OUTCOME_OF = outcome_numbers(STATES)
_BY_NAME = outcome_numbers(NAMES)
# The number of each of the decoder's names in NAMES, from 1 on, and at last of no name; 0: it is not there.
_NAME_NUMBERS = np.array([NAMES.index(name) + 1 if name in NAMES else 0 for name in (*DECODED_NAMES, "")])


@dataclass(frozen=True)
class Performatives:
    """Frames that the tracker reads, those at `at` in `batch`: their `arguments`, the sections of messages with
    `commands` to transaction coordinators, and `marks`; `texts` of all batches."""

    batch: FrameBatch
    at: Integers
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
        states = index_in(state.column("type"), (*STATES, semantics.TRANSACTIONAL))
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
        }
        key, ends = self._transactions(begins, transactional, state, operation, sender)
        outcome, about, final, by_sender = self._outcomes(state, states, sender)
        error_text, info = self._outcome_texts(state, states)
        receiver = np.where((sender == 0) != (arguments.numbers("role", NONE) == 1), 1, 0)
        range_at, range_first, range_last = self._ranges(receiver)
        default = index_in(Fields(source.inside("default_outcome"), TYPE).column("type"), STATES)
        found = numbers | truths | self.marks | {
            "sender": sender, "name": name, "default_outcome": _OUTCOME_OF[default, receiver], "about": about,
            "outcome": outcome, "final": final, "by_sender": by_sender, "error_text": error_text, "info": info,
            "key": key, "ends": ends, "range_at": range_at,
            "range_first": range_first, "range_last": range_last,
        }  # fmt: skip
        return Rows(
            frame_no=frame_no,
            **{each: as_kernel_array(self.cells(each)) for each in FROM_CELLS},
            file=as_kernel_array(self.batch.files[self.at]),
            **{each: self.texts.of(column) for each, column in texts.items()},
            **{each: as_kernel_array(column.astype(np.int64, copy=False)) for each, column in found.items()},
        )

    def cells(self, name: str) -> Integers:
        """A column of the frames as `FrameBatch.cells`."""
        return self.batch.cells(name)[self.at]

    def are(self, name: str, *values: str) -> NDArray[np.bool_]:
        """True where the text in column `name` is one of `values`."""
        return self.batch.are(name, *values)[self.at]

    @cached_property
    def names(self) -> Integers:
        """Their names, as numbers of semantics.NAMES from 1 on; 0 for others."""
        names: Integers = np.where(self.are("version", *VERSIONS), _NAME_NUMBERS[self.cells("name")], 0)
        return names

    def _named(self, role: str) -> NDArray[np.bool_]:
        """bool (n,): rows whose name has this role (semantics.ROLES)."""
        named: NDArray[np.bool_] = (_ROLES[role] != 0)[self.names]
        return named

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

    def _outcomes(self, state: Fields, states: Integers, sender: Integers) -> tuple[Integers, ...]:
        """Of settlements: the outcome, the side whose messages are settled, whether the outcome is final, and whether
        it is one of the server about what it has sent itself.

        A disposition by the receiver settles messages of the other side, one by the sender its own.
        """
        arguments, disposes = self.arguments, self._named("states_outcome")
        settled_in = index_in(Fields(state.inside("outcome"), TYPE).column("type"), STATES)
        terminal = np.where(states > len(STATES), settled_in, states)
        role = arguments.numbers("role", NONE)
        by_name = _BY_NAME[self.names, sender]
        by_receiver = np.where(self._named("transfers"), 1 - sender, sender)  # of the messages
        by_sender = disposes & (role == 0) & (sender == 1) & np.isin(_OUTCOME_OF[terminal, 0], TAKES_BACK)
        stated = np.where(
            (role == 1) | ~disposes, _OUTCOME_OF[terminal, by_receiver], by_sender * self._returns(state, terminal)
        )
        outcome = np.where(disposes | self._named("transfers"), stated, by_name)
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
        arguments, completes = self.arguments, self._named("completes")
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


FROM_CELLS = ("connection_id", "ts_ns", "channel", "content_frame_no", "packet_no")


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
    marks = {"loss": batch.lost, "hides": hides, **batch.late}
    of_rows: dict[str, NDArray[np.bool_] | Integers] = {name: marked[at] for name, marked in marks.items()}
    of_rows["asks"] = np.where(cut, 0, batch.asks[at])
    return Performatives(batch, at, Fields(arguments, ARGUMENTS, CONTAINERS), commands, of_rows, texts)
