"""Methods in, history out: the function that `mapInArrow` calls on methods sorted by connection and frame.

Output: batches of HISTORY, rows of several kinds: messages, events for the settlement engine, lives of channels, links,
and requests with their answers. Nothing is held but the state of the connection at hand. Cost per batch, not per
row: the kernel does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.channel_history import end_connection, follow
from codec.channel_state import ROLE, Results, Roles, Rows, new_results, new_state, with_room
from udfs.settle import Numbers, integers

SENDERS = ("client", "server")  # CLIENT, SERVER
_SENDERS = pa.array(SENDERS)
# Kind -> its columns: (name, field of the record, what the field holds).
KINDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "message": (
        ("connection_id", "connection", "number"),
        ("frame_no", "frame_no", "number"),
        ("channel", "channel", "number"),
        ("channel_life", "life", "number"),
        ("operation", "operation", "operations"),
        ("queue", "queue", "texts"),
        ("link", "link", "texts"),
        ("tag", "tag", "number or null"),
        ("outcome", "outcome", "outcomes"),
    ),
    "event": (
        ("connection_id", "connection", "number"),
        ("ledger", "ledger", "number"),
        ("frame_no", "frame_no", "number"),
        ("opens", "opens", "truth"),
        ("first", "first", "number"),
        ("last", "last", "number"),
        ("outcome", "outcome", "outcomes"),
        ("final", "final", "truth"),
        ("ts_ns", "effective_ns", "number"),
        ("effective_ts_ns", "effective_ns", "number"),
        ("transaction", "transaction", "transactions"),
    ),
    "life": (
        ("connection_id", "connection", "number"),
        ("channel", "channel", "number"),
        ("channel_life", "life", "number"),
        ("opened_ns", "opened_ns", "number or null"),
        ("closed_ns", "close_ns", "number or null"),
        ("close_initiator", "close_sender", "senders"),
        ("close_code", "close_code", "number or null"),
        ("close_text", "close_text", "texts"),
        ("mode", "mode", "modes"),
        ("prefetch_count", "prefetch_count", "number or null"),
        ("prefetch_size", "prefetch_size", "number or null"),
        ("published", "published", "number"),
        ("delivered", "delivered", "number"),
        ("returned", "returned", "number"),
        ("opened", "opened", "number"),
    ),
    "link": (
        ("connection_id", "connection", "number"),
        ("channel", "channel", "number"),
        ("channel_life", "life", "number"),
        ("kind", "kind", "kinds"),
        ("name", "name", "texts"),
        ("queue", "queue", "texts"),
        ("no_ack", "no_ack", "truth"),
        ("exclusive", "exclusive", "truth"),
        ("opened_ns", "opened_ns", "number or null"),
        ("closed_ns", "closed_ns", "number or null"),
        ("closed_by", "closing_sender", "senders"),
        ("closing_name", "closing_name", "names"),
        ("transfers", "transfers", "number"),
    ),
    "reply": (
        ("connection_id", "connection", "number"),
        ("frame_no", "frame_no", "number"),
        ("reply_frame_no", "reply_frame_no", "number"),
        ("reply_name", "reply_name", "names"),
        ("reply_latency_ns", "latency_ns", "number"),
    ),
}
# One flat row for all kinds: each has its numbers and its texts in the slots from the first on.
IS_TEXT = {
    kind: [not holds.startswith("number") and holds != "truth" for _, _, holds in columns]
    for kind, columns in KINDS.items()
}
NUMBERS = tuple(f"n{slot}" for slot in range(max(flags.count(False) for flags in IS_TEXT.values())))
TEXTS = tuple(f"t{slot}" for slot in range(max(flags.count(True) for flags in IS_TEXT.values())))
ARROW_HISTORY = pa.schema(
    [("kind", pa.string()), *((slot, pa.int64()) for slot in NUMBERS), *((slot, pa.string()) for slot in TEXTS)]
)
HISTORY = ", ".join(["kind string", *(f"{slot} bigint" for slot in NUMBERS), *(f"{slot} string" for slot in TEXTS)])


@dataclass(frozen=True)
class MethodRoles:
    """What methods do. `roles`: name -> fields of `codec.channel_state.ROLE`; `settles`: (name, sender, requeue or None
    for either) -> outcome. `texts`: the texts of 'operations', 'modes', 'kinds', 'transactions', 'outcomes' by number,
    from 1 on."""

    roles: Mapping[str, Mapping[str, int]]
    settles: Mapping[tuple[str, str, bool | None], str]
    texts: Mapping[str, tuple[str, ...]]

    def compiled(self) -> Roles:
        """As the kernel reads them; a name's number is its place, from 1 on."""
        rows = np.zeros(len(self.roles) + 1, ROLE).view(np.recarray)
        settles = np.zeros((len(rows), 2, 3), np.int64)
        numbers = {name: number for number, name in enumerate(self.roles, start=1)}
        for name, fields in self.roles.items():
            for field, value in fields.items():
                rows[field][numbers[name]] = value
        for (name, sender, requeue), outcome in reversed(tuple(self.settles.items())):
            cases = slice(None) if requeue is None else int(requeue) + 1
            settles[numbers[name], SENDERS.index(sender), cases] = self.texts["outcomes"].index(outcome) + 1
        return Roles(rows, settles)


@dataclass(frozen=True)
class ChannelHistory:
    """The function for `mapInArrow` over sorted methods and losses (`pipeline.tables.history.SAID`).

    A class of this module, not a nested function: that would travel to the workers with the kernels it names, and
    they would be compiled anew there.
    """

    methods: MethodRoles

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        methods = self.methods
        roles, state = methods.compiled(), new_state()
        names, texts = Numbers(methods.roles), Numbers([""])  # the latter is EMPTY
        known = {"names": names, "texts": texts, **{name: Numbers(values) for name, values in methods.texts.items()}}
        for batch in batches:
            texts_of = {name: texts.of(batch[name]) for name in ("consumer_tag", "queue", "reply_text")}
            numbers = {name: integers(batch[name], null=-1) for name in Rows._fields if name not in (*texts_of, "name")}
            rows = Rows(name=names.of(batch["name"]), **texts_of, **numbers)
            state = with_room(state, batch.num_rows)
            results = new_results(state, batch.num_rows)
            follow(state, roles, rows, results)
            yield from _shown(results, known)
        results = new_results(state, 0)
        end_connection(state, results)
        yield from _shown(results, known)


def _shown(results: Results, known: Mapping[str, Numbers]) -> Iterator[pa.RecordBatch]:
    """What there is of each kind."""
    records = (results.messages, results.events, results.lives, results.links, results.replies)
    for kind, rows, count in zip(KINDS, records, results.counts, strict=True):
        if count:
            yield _of_kind(kind, rows[:count], known)


def slots_of(kind: str) -> dict[str, tuple[str, bool]]:
    """Column of a kind -> its slot, and whether it is a truth value."""
    free = {True: iter(TEXTS), False: iter(NUMBERS)}
    return {
        name: (next(free[is_text]), holds == "truth")
        for (name, _, holds), is_text in zip(KINDS[kind], IS_TEXT[kind], strict=True)
    }


def _of_kind(kind: str, rows: np.ndarray, known: Mapping[str, Numbers]) -> pa.RecordBatch:
    """Records of one kind as rows of HISTORY."""
    slots = {
        name: pa.nulls(len(rows), data_type)
        for name, data_type in zip(ARROW_HISTORY.names, ARROW_HISTORY.types, strict=True)
    }
    slots["kind"] = pa.repeat(pa.scalar(kind), len(rows))
    for (_, field, holds), (slot, _) in zip(KINDS[kind], slots_of(kind).values(), strict=True):
        slots[slot] = _column(np.ascontiguousarray(rows[field]), holds, known)
    return pa.RecordBatch.from_arrays(list(slots.values()), schema=ARROW_HISTORY)


def _column(values: NDArray[np.int64], holds: str, known: Mapping[str, Numbers]) -> pa.Array:
    if holds == "number":
        return pa.array(values)
    if holds in ("number or null", "truth"):
        return pa.array(values, mask=values < 0)
    if holds == "senders":
        return _SENDERS.take(pa.array(values, mask=values < 0))
    return known[holds].column(values)
