"""Deliveries of AMQP 1.0, and what became of them.

A delivery is settled by dispositions over ranges of delivery-ids, of either side: the receiver says a state and may
settle with it, or leaves that to the sender (rcv-settle-mode second); a sender may settle with the transfer itself, or
give a delivery up (aborted). (1.0 core specification, 2.6.12, 2.7.5, 2.7.6.) What is said inside a transaction takes
effect when its discharge was accepted, and never when that failed (4.3). What is sent to a transaction
coordinator is no message, but a command: the disposition that settles it is its reply.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.tables.attaches_1_0 import with_links
from pipeline.tables.ledgers import ledger, no_events, opening, ranges, settling
from pipeline.tables.roles import COORDINATES, named, other
from pipeline.tables.session_roles import COPY, DISCHARGE, PERFORMATIVES, TRANSACTIONAL, outcome_of
from pipeline.tables.sessions import SAID, in_sessions, spoken, with_hidden_answers
from pipeline.tables.settlement import settle
from pipeline.tables.transactions import takes_effect, unanswered, with_ends

ARGUMENTS = """struct<remote_channel int, name string, handle bigint, role boolean, snd_settle_mode int,
    rcv_settle_mode int, initial_delivery_count bigint,
    source struct<address string, distribution_mode string, default_outcome struct<type string>>,
    target struct<address string, type string>,
    delivery_id bigint, delivery_tag binary, message_format bigint, settled boolean, resume boolean, aborted boolean,
    first bigint, last bigint, state struct<type string, txn_id binary, outcome struct<type string>>,
    delivery_count bigint, link_credit bigint, incoming_window bigint, outgoing_window bigint,
    error struct<condition string, description string>>"""
OPERATION = "struct<type string, txn_id binary, fail boolean>"  # of a transaction coordinator
SETTLES = ("disposition",)
# Outcomes that the sender gives itself.
PRESETTLED, ABORTED = "presettled", "aborted"


def placed_performatives(frames: DataFrame) -> DataFrame:
    """`frames` -> the performatives of sessions of 1.0, with the session, link and transaction of each."""
    said = F.expr(f"try_variant_get(arguments, '$', '{ARGUMENTS}')")
    operation = F.expr(f"try_variant_get(properties, '$.body', '{OPERATION}')")
    coordinates = F.when(F.col("properties").isNotNull(), operation).alias("coordinates")
    rows = spoken(frames, "1.0", PERFORMATIVES, SETTLES, said.alias("said"), coordinates)
    rows = with_links(with_hidden_answers(in_sessions(rows, apart=True)))
    return rows.withColumn("transaction_key", _transaction_key())


def settled_deliveries(placed: DataFrame) -> DataFrame:
    """`placed_performatives` without the dispositions; on the first transfer of a delivery also `delivers`, then of a
    message `operation`, `outcome`, `settled_ts_ns`, `transaction`, of a command to a coordinator `reply_frame_no`,
    `reply_ts_ns`. They are read several times: better persisted."""
    asked = placed.filter(_is_first() & (F.col("coordinates.type") == DISCHARGE)).select(
        "connection_id", ledger(F.col("sender")).alias("ledger"), "frame_no"
    )
    rows = with_ends(placed, asked, _events(placed), _discharged())
    # Said in a transaction whose end was not seen: it has not taken effect.
    effective = _events(rows, F.col("end")).filter("opens or transaction_key is null or end is not null")
    results = settle(
        effective.withColumns({"effective_ts_ns": F.col("end.asked_ts_ns"), "transaction": F.col("end.result")})
    )
    return _concluded(rows.filter(~named(SETTLES)).join(results, ["connection_id", "frame_no"], "left"))


def _transaction_key() -> Column:
    """Transaction that a row is said in, or discharges.

    What the broker says of a publish in a transaction is about that publish, whose own transfer names the transaction.
    """
    state = F.col("said.state")
    inside = (_is_first() | (named(SETTLES) & (F.col("sender") == "client"))) & (state["type"] == TRANSACTIONAL)
    discharges = F.col("coordinates.type") == DISCHARGE
    return F.hex(F.when(inside, state["txn_id"]).when(discharges, F.col("coordinates.txn_id")))


def _discharged() -> Column:
    """A discharge is a message to the coordinator; its outcome tells whether that was done."""
    committed = (F.col("answer") == "confirmed") & ~F.coalesce("coordinates.fail", F.lit(False))
    result = F.when(committed, "committed").otherwise("rolled-back")
    return F.when(
        F.col("answer").isin("confirmed", "rejected"),
        F.struct(F.col("answered_ts_ns").alias("ts_ns"), F.col("ts_ns").alias("asked_ts_ns"), result.alias("result")),
    )


def replies(settled: DataFrame) -> DataFrame:
    """`settled_deliveries` -> the replies of commands to coordinators, as rows of `udfs.parts.REPLIES`."""
    return settled.filter("reply_frame_no is not null").select(
        "connection_id",
        "frame_no",
        "reply_frame_no",
        F.lit(SETTLES[0]).alias("reply_name"),
        (F.col("reply_ts_ns") - F.col("ts_ns")).alias("reply_latency_ns"),
    )


def _is_command() -> Column:
    """Whether a transfer is for the coordinator: its link says so; without a link that is known, its body."""
    asks = F.coalesce(F.col("coordinates.type").isin(*COORDINATES), F.lit(False))
    return F.coalesce("link.coordinator", asks)


def _is_first() -> Column:
    return named(["transfer"]) & F.coalesce(F.col("content_frame_no") == F.col("frame_no"), F.lit(False))


def _events(rows: DataFrame, *kept: Column) -> DataFrame:
    """What opens and settles deliveries, as `settle` reads it, with `transaction_key` where it is said in one."""
    mine = F.col("sender")
    gives_up = F.coalesce("said.aborted", F.lit(False))
    # Any transfer of a delivery may say that it is settled, or that it is given up.
    ends_own = (
        named(["transfer"])
        & (F.col("delivery.frame_no") == F.col("content_frame_no"))
        & (gives_up | F.coalesce("said.settled", F.lit(False)))
    )
    number = F.col("delivery.delivery_id")
    own = F.when(gives_up, ABORTED).otherwise(PRESETTLED)
    happens = F.concat(
        F.when(_is_first(), F.array(opening(mine, number))).otherwise(no_events()),
        F.when(ends_own, F.array(settling(mine, number, number, own, F.lit(True)))).otherwise(no_events()),
        F.when(named(SETTLES), _disposed()).otherwise(no_events()),
    )
    key = F.when(named(SETTLES), F.col("transaction_key")).alias("transaction_key")
    return (
        rows.filter(named(["transfer", *SETTLES]))
        .select("connection_id", "frame_no", "ts_ns", key, *kept, F.inline(happens))
        .filter("first is not null and ledger is not null and (opens or final or outcome is not null)")
    )


def _disposed() -> Column:
    """Events of a disposition: of the receiver it is about what the other side sent, of the sender about its own."""
    by_receiver, state = F.col("said.role"), F.col("said.state")
    terminal = F.when(state["type"] == TRANSACTIONAL, state["outcome"]["type"]).otherwise(state["type"])
    outcome = F.when(by_receiver, outcome_of(terminal, F.col("sender")))
    side = F.when(by_receiver, other("sender")).when(~by_receiver, F.col("sender"))
    final = F.coalesce("said.settled", F.lit(False))
    return F.transform(
        ranges(F.col("said.first"), F.coalesce("said.last", "said.first")),
        lambda one: settling(side, one["first"], one["last"], outcome, final),
    )


def _concluded(rows: DataFrame) -> DataFrame:
    first, command = _is_first() & ~_is_command(), _is_first() & _is_command()
    was_settled = F.col("settled_frame_no").isNotNull()
    given = F.coalesce("outcome", F.when(was_settled, F.coalesce("link.default_outcome", F.lit("unknown"))))
    stands = takes_effect(given)
    no_answer = F.when(F.col("said.delivery_id").isNull(), "unknown").otherwise(unanswered())
    outcome = F.coalesce(stands, no_answer)
    # When something presettled was settled says nothing: it was when it was sent.
    said = stands.isNotNull() & F.col("settled_ts_ns").isNotNull() & ~F.col("outcome").eqNullSafe(PRESETTLED)
    answered = ~F.coalesce("outcome", F.lit("")).isin(PRESETTLED, ABORTED)
    told = F.when(said, F.greatest("settled_ts_ns", "end.ts_ns"))
    operation = F.when(F.col("sender") == "client", "publish").otherwise("deliver")
    return rows.withColumns(
        {
            "delivers": _is_first(),
            "operation": F.when(first, operation),
            "outcome": F.when(first, outcome),
            "settled_ts_ns": F.when(first, told),
            "settled_frame_no": F.when(first & said, F.col("settled_frame_no")),
            "reply_frame_no": F.when(command & answered, F.col("settled_frame_no")),
            "reply_ts_ns": F.when(command & answered, F.col("settled_ts_ns")),
            "transaction": F.when(first, F.coalesce("end.result", "transaction")),
            "address": F.col("link.address"),
            "browsed": F.when(operation == "deliver", F.col("link.distribution_mode") == COPY),
            "delivery_id": F.col("said.delivery_id"),
            "delivery_tag_hex": F.lower(F.hex("said.delivery_tag")),
            "message_format": F.col("said.message_format"),
            "resumed": F.when(first, F.coalesce("said.resume", F.lit(False))),
            "on_link": F.col("link"),
            "link": F.col("link.name"),
            "own_channel": F.col("channel"),
            "channel": F.col("session_channel"),
            "credited": F.struct("said.delivery_count", "said.link_credit"),
            "said": _shared(),
        }
    ).drop("delivery", "coordinates", "end", "answer_hidden", "transaction_key")


def _shared() -> Column:
    """What all families state: see `sessions.SAID`."""
    mode = F.when(F.col("link.coordinator"), "tx")
    values = ("remote_channel", "incoming_window", "outgoing_window", "error")
    return F.struct(
        F.col("said.remote_channel"),
        F.lit(None).cast("string").alias("name"),
        F.lit(None).cast("int").alias("code"),
        *(F.col(f"said.{name}") for name in values[1:]),
        mode.alias("mode"),
    ).cast(SAID)
