"""Checks the sequence of frames of 0-10 and 1.0: the function that `mapInArrow` calls on rows of methods.

Input: batches of METHOD_COLUMNS, connection by connection in the order of frames. Output: batches of ODD, one row for
each oddity. State is that of the current connection. Python works per batch, the kernels of `codec.checks` per row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.checks import state as S
from codec.checks import (
    state as records_0_10,
)
from codec.checks import (
    state as records_1_0,
)
from codec.checks import (
    v0_10,
    v1_0,
)
from codec.checks.state import NONE, State, new_state, with_room
from codec.conversation.session_state import COORDINATES, COORDINATOR
from codec.memory import as_kernel_array
from codec.names import SIDES
from codec.protocol.versions import E_UNEXPECTED_SEGMENT, ERRORS, fact_table
from codec.tables import INT, LONG, STRING, STRINGS, table_of
from codec.variant import encode
from udfs.arrow.fields import Fields, Values, are_objects, counted, elements, fields, hashed, texts, values_of
from udfs.arrow.rows import (
    index_in,
    indices_where,
    is_in,
    is_valid,
    to_int64,
)
from udfs.arrow.types import arrow_schema, cast_to, variants

Integers = NDArray[np.int64]
METHOD_COLUMNS = (
    "connection_id", "frame_no", "ts_ns", "channel", "sender", "version", "name", "frame_type", "status", "error",
    "size", "payload_size", "arguments",
    "grace_ns", "last_ns", "agreed_channel_max", "transaction_command", "discharged",
)  # fmt: skip
ODD = table_of(
    "oddities",
    ("connection_id", LONG, "TCP connection"),
    ("frame_no", LONG, "frame that is odd, or that was not answered"),
    ("ts_ns", LONG, "when that was noticed, ns since 1970-01-01 UTC"),
    ("version", STRING, "AMQP version"),
    ("sender", STRING, "who is odd: 'client' or 'server'"),
    ("channel", INT, "channel number, as in table channels; null: about the connection"),
    ("channel_incarnation", LONG, "which incarnation of the channel number, see channels"),
    ("oddity", STRING, "name of what was noticed"),
    ("observed", LONG, "the number that is odd"),
    ("expected", LONG, "the number in its place, or the limit"),
    ("about_frame_no", LONG, "frame that begins the link or message it is about"),
    ("waited_ns", LONG, "how long an answer took, or had not come at the end, ns"),
    ("missing", STRINGS, "names of required fields that are left out"),
)
OF_1_0 = {
    "channel_max": "bigint", "max_frame_size": "bigint", "remote_channel": "bigint", "next_outgoing_id": "bigint",
    "next_incoming_id": "bigint", "incoming_window": "bigint", "handle_max": "bigint", "echo": "boolean",
    "handle": "bigint", "name": "binary", "role": "boolean", "snd_settle_mode": "bigint", "rcv_settle_mode": "bigint",
    "initial_delivery_count": "bigint", "max_message_size": "bigint", "delivery_count": "bigint",
    "link_credit": "bigint", "available": "bigint", "drain": "boolean", "delivery_id": "bigint",
    "delivery_tag": "binary", "message_format": "bigint", "settled": "boolean", "more": "boolean", "resume": "boolean",
    "aborted": "boolean", "closed": "boolean", "first": "bigint", "last": "bigint",
}  # fmt: skip
INSIDE_1_0 = ("source", "target", "state", "error", "unsettled")
TERMINUS = {"address": "string", "dynamic": "boolean", "type": "string"}
# Outcomes as bits: by type of a delivery state, and by the symbol in a source.
OUTCOMES = ("accepted", "rejected", "released", "modified", "declared")
SYMBOLS = tuple(f"amqp:{name}:list" for name in OUTCOMES)
TRANSACTIONAL = "transactional-state"
OF_0_10 = {
    "command_id": "bigint", "sync": "boolean", "name": "binary", "force": "boolean", "code": "bigint",
    "command_offset": "bigint", "error_code": "bigint", "timely_reply": "boolean", "destination": "binary",
    "accept_mode": "bigint", "flow_mode": "bigint", "unit": "bigint", "value": "bigint", "xid": "variant",
    "timeout": "bigint",
}  # fmt: skip
NUMBERS_0_10 = tuple(name for name, type_ in OF_0_10.items() if type_ in ("bigint", "boolean"))
SETS = ("commands", "transfers")


def _named(group: str, *flags: str, **values: str) -> tuple[str, ...]:
    """Names of the 0-10 controls or commands with these `flags` and `values` in the specification."""
    return tuple(
        f"{of_class['name']}.{entry['name']}"
        for of_class in fact_table("0-10")["classes"]
        for entry in of_class.get(group, ())
        if all(entry.get(name) for name in flags) and all(entry.get(name) == value for name, value in values.items())
    )


# Required fields that clients and brokers leave out; they mean the first mode, or no error.
LEFT_OUT = ("accept-mode", "acquire-mode", "code")
# Their arguments are not in rows, or not all of them.
LOGIN = ("connection.start-ok", "connection.secure", "connection.secure-ok")


def _required() -> dict[str, tuple[str, ...]]:
    """Fields that a control or command must have, without those of LOGIN, and LEFT_OUT."""
    found = {}
    for of_class in fact_table("0-10")["classes"]:
        for entry in (*of_class.get("controls", ()), *of_class.get("commands", ())):
            wanted = tuple(
                field["name"].replace("-", "_")
                for field in entry["fields"]
                if field["required"] and field["name"] not in LEFT_OUT
            )
            name = f"{of_class['name']}.{entry['name']}"
            if wanted and name not in LOGIN:
                found[name] = wanted
    return found


GIVE_RESULTS = _named("commands", "result")
BY_CLIENT, BY_SERVER = ((*_named("controls", sent_by=side), *_named("commands", sent_by=side)) for side in SIDES)
OF_CONNECTION = tuple(name for name in _named("controls") if name.startswith("connection."))
REQUIRED = _required()
_ODDITIES = pa.array(S.ODDITIES)
_SIDES = pa.array(SIDES)


def odd_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of methods -> ODD rows, for `mapInArrow`."""
    checks = Check10(), Check010()
    for batch in batches:
        for check in checks:
            rows = batch.filter(pc.equal(batch["version"], check.version))
            if rows.num_rows:  # the kernels of a version take memory, and a while to load
                yield from check.rows(rows)
    for check in checks:
        yield from check.ends()


def load_kernels(versions: Collection[str]) -> None:
    """Load the kernels that check these versions, or compile them: one row of each."""
    columns: dict[str, pa.Array] = {name: pa.array([1]) for name in METHOD_COLUMNS}
    arguments = variants([encode({"handle": 1, "transfers": [{"lower": 0, "upper": 1}]})])
    columns |= {"arguments": arguments, "discharged": pa.nulls(1, pa.binary())}
    texts = {"sender": "client", "frame_type": "command", "status": "ok", "error": None, "transaction_command": None}
    for version, name in (("0-10", "message.accept"), ("1.0", "attach")):
        if version in versions:
            named = {**texts, "version": version, "name": name}
            columns |= {column: pa.array([text], pa.string()) for column, text in named.items()}
            list(odd_rows(iter([pa.record_batch(columns)])))


class Check10:
    """The sequence of performatives of 1.0."""

    version = "1.0"

    def __init__(self) -> None:
        self._state: State | None = None

    def rows(self, methods: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The oddities in the next rows."""
        rows = rows_1_0(methods)
        state = self._state or new_state(records_1_0.NEW_ENDPOINT, records_1_0.NEW_END)
        self._state = with_room(state, len(rows.name), v1_0.KEYS_A_ROW)
        v1_0.follow(self._state, rows)
        yield _oddities(self._state, self.version)

    def ends(self) -> Iterator[pa.RecordBatch]:
        """The oddities at the end of the last connection."""
        if self._state is not None:
            state = with_room(self._state, 0, 0)
            v1_0.finish(state)
            yield _oddities(state, self.version)


class Check010:
    """The sequence of controls and commands of 0-10."""

    version = "0-10"

    def __init__(self) -> None:
        self._state: State | None = None

    def rows(self, methods: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The oddities in the next rows."""
        rows = rows_0_10(methods)
        state = self._state or new_state(records_0_10.NEW_CHANNEL, records_0_10.NEW_SUBSCRIPTION)
        self._state = with_room(state, len(rows.name), v0_10.KEYS_A_ROW)
        v0_10.follow(self._state, rows)
        yield _oddities(self._state, self.version)
        yield from _of_one_frame(methods, rows)

    def ends(self) -> Iterator[pa.RecordBatch]:
        """The oddities at the end of the last connection."""
        if self._state is not None:
            state = with_room(self._state, 0, 0)
            v0_10.finish(state)
            yield _oddities(state, self.version)


def rows_1_0(methods: pa.RecordBatch) -> records_1_0.Performatives:
    """Columns of performatives for the kernels."""
    arguments = Fields(values_of(methods["arguments"]), OF_1_0, INSIDE_1_0)
    within = {name: arguments.inside(name) for name in INSIDE_1_0}
    source, target = (Fields(within[name], TERMINUS, ("outcomes",)) for name in ("source", "target"))
    state = Fields(within["state"], {"type": "string", "txn_id": "binary"}, ("outcome",))
    states, tag = state.column("type"), arguments.column("delivery_tag")
    settled_in = fields(state.inside("outcome"), {"type": "string"})["type"]
    kind = pc.if_else(pa.array(is_in(states, TRANSACTIONAL)), settled_in, states)
    transaction = pc.coalesce(methods["discharged"], state.column("txn_id"))
    receives = arguments.numbers("role", NONE)
    is_source = receives == 1  # a receiver asks for the address of the source
    dynamic = np.where(is_source, source.numbers("dynamic", 0), target.numbers("dynamic", 0))
    addressed = np.where(is_source, *(is_valid(terminus.column("address")) for terminus in (source, target)))
    numbers = {
        name: as_kernel_array(arguments.numbers(name, NONE))
        for name, type_ in OF_1_0.items()
        if type_ != "binary" and name not in ("available", "role")
    }
    return records_1_0.Performatives(
        **_common_columns(methods),
        name=as_kernel_array(np.where(_readable(methods), index_in(methods["name"], v1_0.NAMES), 0)),
        size=to_int64(methods["size"]),
        payload_size=to_int64(methods["payload_size"]),
        error=as_kernel_array(are_objects(within["error"]).astype(np.int64)),
        link_name=as_kernel_array(hashed(arguments.column("name"))),
        is_receiver=as_kernel_array(receives),
        has_source=as_kernel_array(are_objects(within["source"]).astype(np.int64)),
        has_target=as_kernel_array(are_objects(within["target"]).astype(np.int64)),
        dynamic=as_kernel_array(dynamic),
        addressed=as_kernel_array(addressed.astype(np.int64)),
        outcomes=as_kernel_array(_outcomes(source.inside("outcomes"))),
        unsettled=as_kernel_array((within["unsettled"].stops > within["unsettled"].starts + 1).astype(np.int64)),
        link_fields=as_kernel_array(_any_there(arguments, "delivery_count", "link_credit", "available")),
        tag=as_kernel_array(hashed(tag)),
        tag_size=as_kernel_array(pc.binary_length(tag).cast(pa.int64()).fill_null(NONE).to_numpy()),
        state=as_kernel_array(_bits(kind, OUTCOMES, is_valid(states))),
        transaction=as_kernel_array(np.where(is_valid(transaction), hashed(transaction), 0)),
        coordinates=as_kernel_array(index_in(methods["transaction_command"], COORDINATES)),
        coordinator=as_kernel_array(is_in(target.column("type"), COORDINATOR).astype(np.int64)),
        **numbers,
    )


def rows_0_10(methods: pa.RecordBatch) -> records_0_10.Controls:
    """Columns of controls and commands for the kernels."""
    arguments = Fields(values_of(methods["arguments"]), OF_0_10, SETS)
    range_at, range_first, range_last = _ranges(arguments.inside("commands"), arguments.inside("transfers"))
    readable = _readable(methods)
    name = np.where(readable, index_in(methods["name"], v0_10.NAMES), 0)
    xid = arguments.column("xid")
    xid = pc.if_else(xid.is_valid(), xid.field("value"), pa.scalar(None, pa.binary()))
    keys = {"key": pc.coalesce(xid, arguments.column("name")), "destination": arguments.column("destination")}
    numbers = {column: as_kernel_array(arguments.numbers(column, NONE)) for column in NUMBERS_0_10}
    return records_0_10.Controls(
        **_common_columns(methods),
        channel_max=to_int64(methods["agreed_channel_max"], null=NONE),
        name=as_kernel_array(name),
        is_command=as_kernel_array((readable & is_in(methods["name"], *_named("commands"))).astype(np.int64)),
        gives_result=as_kernel_array(is_in(methods["name"], *GIVE_RESULTS).astype(np.int64)),
        of_connection=as_kernel_array(is_in(methods["name"], *OF_CONNECTION).astype(np.int64)),
        begins=as_kernel_array(_begins(methods)),
        range_at=as_kernel_array(range_at),
        range_first=range_first,
        range_last=range_last,
        **{column: as_kernel_array(hashed(text)) for column, text in keys.items()},
        **numbers,
    )


def _common_columns(methods: pa.RecordBatch) -> dict[str, Integers]:
    names = ("connection_id", "frame_no", "ts_ns", "grace_ns", "last_ns", "channel")
    sender = as_kernel_array(is_in(methods["sender"], SIDES[1]).astype(np.int64))
    return {"sender": sender, **{name: to_int64(methods[name]) for name in names}}


def _begins(methods: pa.RecordBatch) -> Integers:
    """Of frames of commands, whether they begin one; the others continue one whose beginning was not captured."""
    continues = is_in(methods["error"], str(ERRORS[E_UNEXPECTED_SEGMENT]))
    return np.where(is_in(methods["frame_type"], "command"), np.where(continues, 0, 1), NONE)


def _ranges(*sets: Values) -> tuple[Integers, Integers, Integers]:
    """The ranges of the first of `sets` that a row has: where they begin by row, the first and the last id of each."""
    starts, stops = sets[0].starts, sets[0].stops
    for others in sets[1:]:
        there = starts < stops
        starts, stops = np.where(there, starts, others.starts), np.where(there, stops, others.stops)
    arrays = sets[0].at(starts, stops)
    counts = counted(arrays)
    each = Fields(elements(arrays, counts), {"lower": "bigint", "upper": "bigint"})
    first, last = (as_kernel_array(each.numbers(name, NONE)) for name in ("lower", "upper"))
    return np.concatenate([[0], np.cumsum(counts)]), first, last


def _of_one_frame(methods: pa.RecordBatch, rows: records_0_10.Controls) -> Iterator[pa.RecordBatch]:
    """Oddities of single controls and commands."""
    wrong = is_in(methods["name"], *BY_CLIENT) & (rows.sender == 1)
    wrong |= is_in(methods["name"], *BY_SERVER) & (rows.sender == 0)
    yield _marked(methods, wrong, S.WRONG_SIDE)
    whole = is_in(methods["status"], "ok")
    lacks: dict[int, list[str]] = {}
    values = values_of(methods["arguments"])
    for name, wanted in REQUIRED.items():
        at = np.flatnonzero(whole & is_in(methods["name"], name))
        if len(at):
            there = fields(values.rows_at(at), dict.fromkeys(wanted, "variant"))
            for field, column in there.items():
                for row in at[~is_valid(column)].tolist():
                    lacks.setdefault(row, []).append(field)
    missing = np.zeros(len(whole), bool)
    missing[[*lacks]] = True
    yield _marked(methods, missing, S.REQUIRED_MISSING, [lacks[row] for row in sorted(lacks)])
    # Ids rise within a range, and ranges are neither adjacent nor overlapping.
    first, last, row = rows.range_first, rows.range_last, np.repeat(np.arange(len(whole)), np.diff(rows.range_at))
    broken = (last - first) % S.SERIAL >= S.HALF
    follows = row[1:] == row[:-1]
    gaps = (first[1:] - last[:-1] + S.HALF) % S.SERIAL - S.HALF
    broken[1:] |= follows & (gaps <= 1)
    malformed = np.zeros(len(whole), bool)
    malformed[row[broken]] = True
    yield _marked(methods, malformed, S.SET_MALFORMED)


def _marked(
    methods: pa.RecordBatch, marks: NDArray[np.bool_], oddity: int, missing: list[list[str]] | None = None
) -> pa.RecordBatch:
    """ODD rows of the frames that are marked; `missing`: what each of them lacks."""
    rows = methods.take(indices_where(marks))
    columns = {name: rows[name] for name in ("connection_id", "frame_no", "ts_ns", "version", "sender", "channel")}
    columns["oddity"] = pa.repeat(_ODDITIES[oddity], len(rows["frame_no"]))
    if missing:
        columns["missing"] = pa.array(missing, pa.list_(pa.string()))
    return cast_to(columns, arrow_schema(ODD))


def _readable(methods: pa.RecordBatch) -> NDArray[np.bool_]:
    """Where the arguments are complete."""
    return is_valid(methods["arguments"]) & ~is_in(methods["status"], "partial")


def _any_there(arguments: Fields, *names: str) -> Integers:
    there: NDArray[np.bool_] = np.logical_or.reduce([is_valid(arguments.column(name)) for name in names])
    return there.astype(np.int64)


def _bits(kinds: pa.Array, known: tuple[str, ...], there: NDArray[np.bool_]) -> Integers:
    """The bit of each kind in `known`, 0 for others, NONE where there is none."""
    numbers = index_in(kinds, known)
    return np.where(numbers > 0, 1 << np.maximum(numbers - 1, 0), np.where(there, 0, NONE))


def _outcomes(arrays: Values) -> Integers:
    """The outcomes that sources allow, as bits; 0 where a source names none."""
    counts = counted(arrays)
    symbols = texts(elements(arrays, counts))
    bits = np.maximum(_bits(symbols, SYMBOLS, is_valid(symbols)), 0)
    found = np.zeros(len(counts), np.int64)
    np.bitwise_or.at(found, np.repeat(np.arange(len(counts)), counts), bits)
    return found


def _oddities(state: State, version: str) -> pa.RecordBatch:
    """The oddities in `state`, as ODD rows."""
    hits = state.hits[: state.numbers[S.HITS]]
    columns = {name: pa.array(hits[name], mask=hits[name] == NONE) for name in hits.dtype.names or ()}
    columns["ts_ns"] = pa.array(hits["ts_ns"])  # NONE is a time, too
    columns["version"] = pa.repeat(pa.scalar(version), len(hits))
    columns["sender"] = _SIDES.take(columns["sender"])
    columns["oddity"] = _ODDITIES.take(columns["oddity"])
    return cast_to(columns, arrow_schema(ODD))
