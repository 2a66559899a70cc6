"""Transfers of AMQP 0-10, and what became of them.

A transfer is a command, known by the number that it has among the commands of its side of the session. The receiver
accepts, rejects or releases ranges of these numbers; of a publish it is enough that the server completes the command. A
transfer with accept-mode none asks for nothing: it is presettled, unless the server refuses it. (0-10 specification,
classes session, execution, message.) In a transaction, publishes and accepts take effect with its commit.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.ledgers import ledger, no_events, opening, ranges, settling
from pipeline.tables.roles import MODES, TRANSACTION_ENDS, looked_up, named, other
from pipeline.tables.session_roles import (
    COMMANDS,
    COMPLETES,
    DTX_ENDS,
    DTX_STARTS,
    DTX_STOPS,
    NO_ACCEPT,
    NOT_ACQUIRED,
    SETTLES_TRANSFERS,
    SUBSCRIBES,
    SUBSCRIPTION_COMMANDS,
    TRANSACTIONAL_COMMANDS,
    TRANSFERS_0_10,
    UNROUTABLE,
    outcome_of,
)
from pipeline.tables.sessions import SAID, SESSION, in_sessions, spoken, with_hidden_answers
from pipeline.tables.settlement import settle
from pipeline.tables.transactions import takes_effect, unanswered, with_ends

ARGUMENTS = """struct<name binary, command_id bigint, destination string, queue string, accept_mode int,
    acquire_mode int, exclusive boolean, flow_mode int, unit int, value bigint,
    transfers array<struct<lower bigint, upper bigint>>, commands array<struct<lower bigint, upper bigint>>, code int,
    error_code int, description string, xid struct<format bigint, global_id binary, branch_id binary>>"""
SETTLES = (*SETTLES_TRANSFERS, *COMPLETES)
ENDS = {**TRANSACTION_ENDS, **DTX_ENDS}


def placed_commands(frames: DataFrame) -> DataFrame:
    """`frames` -> controls and commands of sessions of 0-10, with the session, subscription and transaction of each."""
    said = F.expr(f"try_variant_get(arguments, '$', '{ARGUMENTS}')").alias("said")
    # Of a result: 0 is success (dtx.xa-status); other results have no status.
    status = F.expr("try_variant_get(arguments, '$.value.status', 'int')")
    values = (said, F.when(named(["execution.result"]), status).alias("status"))
    rows = spoken(frames, "0-10", COMMANDS, SETTLES, *values)
    return _with_transactions(_with_subscriptions(with_hidden_answers(in_sessions(rows, apart=False))))


def settled_transfers(placed: DataFrame) -> DataFrame:
    """`placed_commands` without what settles; on transfers also `operation`, `outcome`, `settled_ts_ns`,
    `transaction`. They are read several times: better persisted."""
    asked = placed.filter(named(ENDS) & F.col("said.command_id").isNotNull()).select(
        "connection_id", ledger(F.col("sender")).alias("ledger"), "frame_no"
    )
    rows = with_ends(placed, asked, _events(placed), _ended())
    effective = _events(rows, F.col("end")).filter("opens or transaction_key is null or end is not null")
    results = settle(
        effective.withColumns({"effective_ts_ns": F.col("end.asked_ts_ns"), "transaction": F.col("end.result")})
    )
    rest = rows.filter(~named((*SETTLES_TRANSFERS, "session.completed", "execution.result")))
    return _concluded(rest.join(results, ["connection_id", "frame_no"], "left"))


def _with_subscriptions(rows: DataFrame) -> DataFrame:
    """`subscription` (of SUBSCRIBES: its frame_no, queue ...) of the commands about one and of what comes over it.

    A destination names the latest subscription to it; after a loss of the client's frames it may name another.
    """
    by_client = (F.col("sender") == "client") & named(SUBSCRIPTION_COMMANDS)
    delivered = (F.col("sender") == "server") & named(TRANSFERS_0_10)
    of_destination = Window.partitionBy(*SESSION, "destination").orderBy("frame_no")
    subscribed = F.struct(
        F.col("frame_no").alias("subscription_id"),
        F.col("client_losses").alias("losses"),
        F.col("said.queue"),
        F.col("said.command_id"),
        (F.coalesce("said.accept_mode", F.lit(0)) == NO_ACCEPT).alias("no_ack"),
        F.coalesce("said.exclusive", F.lit(False)).alias("exclusive"),
    )
    latest = F.last(F.when(named(SUBSCRIBES) & F.col("destination").isNotNull(), subscribed), True).over(of_destination)
    return (
        rows.withColumn("destination", F.when(by_client | delivered, F.col("said.destination")))
        .withColumn("subscription", latest)
        .withColumn(
            "subscription",
            F.when(
                F.col("destination").isNotNull() & (F.col("subscription.losses") == F.col("client_losses")),
                F.col("subscription"),
            ),
        )
    )


def _with_transactions(rows: DataFrame) -> DataFrame:
    """`transaction_key` of the commands that a transaction holds, and of those that end one.

    After tx.select one follows the other on the session; dtx.start and dtx.end say which one the session works on.
    """
    so_far = Window.partitionBy(*SESSION).orderBy("frame_no")
    before = so_far.rowsBetween(Window.unboundedPreceding, -1)
    mode = looked_up(MODES)
    branch = F.concat_ws(
        " ", F.col("said.xid.format").cast("string"), F.hex("said.xid.global_id"), F.hex("said.xid.branch_id")
    )
    works_on = F.when(named(DTX_STARTS), F.struct(branch.alias("branch"))).when(
        named(DTX_STOPS), F.struct(F.lit(None).cast("string").alias("branch"))
    )
    ended = F.count(F.when(named(TRANSACTION_ENDS), 1)).over(before)
    in_tx = named(TRANSACTION_ENDS) | ((F.col("sender") == "client") & named(TRANSACTIONAL_COMMANDS))
    own = F.concat_ws(" ", F.lit("session"), "session_channel", "channel_life", "ended")
    return (
        rows.withColumns(
            {
                "mode": F.last(mode, ignorenulls=True).over(so_far),
                "ended": ended,
                "works_on": F.last(works_on, ignorenulls=True).over(so_far),
            }
        )
        .withColumn(
            "transaction_key",
            F.when(named(DTX_ENDS), branch)
            .when(in_tx & (F.col("mode") == "tx"), own)
            .when(in_tx & (F.col("mode") == "dtx"), F.col("works_on.branch")),
        )
        .drop("mode", "ended", "works_on")
    )


def _ended() -> Column:
    """A transaction ends when the server has done what asks for it; where it could not, nothing is committed."""
    result = F.when(F.col("answer") == "confirmed", looked_up(ENDS)).otherwise("rolled-back")
    return F.when(
        F.col("answer").isNotNull(),
        F.struct(F.col("answered_ts_ns").alias("ts_ns"), F.col("ts_ns").alias("asked_ts_ns"), result.alias("result")),
    )


def _needs_no_accept() -> Column:
    return F.coalesce(F.col("said.accept_mode") == NO_ACCEPT, F.lit(False))


def _events(rows: DataFrame, *kept: Column) -> DataFrame:
    """What opens and settles transfers, and commands that end transactions, as `settle` reads it."""
    opens = named(ENDS) | (named(TRANSFERS_0_10) & ~((F.col("sender") == "server") & _needs_no_accept()))
    sent = F.array(opening(F.col("sender"), F.col("said.command_id")))
    happens = F.when(opens, sent).when(named(SETTLES), _settling()).otherwise(no_events())
    key = F.when(named(SETTLES), F.col("transaction_key")).alias("transaction_key")
    return (
        rows.filter(named((*ENDS, *TRANSFERS_0_10, *SETTLES)))
        .select("connection_id", "frame_no", "ts_ns", key, *kept, F.inline(happens))
        .filter("first is not null and (opens or outcome is not null)")
    )


def _settling() -> Column:
    """Events over the commands that an accept, reject, release, completion, result or exception names."""
    unroutable = named(["message.reject"]) & (F.col("sender") == "server") & F.col("said.code").isin(*UNROUTABLE)
    failed = F.col("status") != 0
    outcome = (
        F.when(unroutable, "returned").when(F.coalesce(failed, F.lit(False)), "nacked").otherwise(
            outcome_of(F.col("name"), F.col("sender"))
        )
    )  # fmt: skip
    one = F.array(F.struct(F.col("said.command_id").alias("lower"), F.col("said.command_id").alias("upper")))
    sets = (
        F.when(named(["session.completed"]), F.col("said.commands"))
        .when(named(SETTLES_TRANSFERS), F.col("said.transfers"))
        .otherwise(one)
    )
    each = F.flatten(F.transform(sets, lambda s: ranges(s["lower"], s["upper"])))
    side, final = other("sender"), F.lit(True)
    settled = F.transform(each, lambda one: settling(side, one["first"], one["last"], outcome, final))
    return F.coalesce(settled, no_events())


def _concluded(rows: DataFrame) -> DataFrame:
    transfer = named(TRANSFERS_0_10) & (F.col("content_frame_no") == F.col("frame_no"))
    published = F.col("sender") == "client"
    no_answer = F.when(F.col("said.command_id").isNull(), "unknown").otherwise(unanswered())
    stands = takes_effect(F.col("outcome"))
    # What needs no accept is settled as it is sent. That a publish was completed, sooner or later, tells when.
    refused = published & F.coalesce(stands != "confirmed", F.lit(False))
    outcome = (
        F.when(~published & F.col("said").isNull(), "unknown")
        .when(_needs_no_accept() & ~refused, "presettled")
        .otherwise(F.coalesce(stands, no_answer))
    )
    told = F.when(stands.isNotNull() & F.col("settled_ts_ns").isNotNull(), F.greatest("settled_ts_ns", "end.ts_ns"))
    return rows.withColumns(
        {
            "operation": F.when(transfer, F.when(published, "publish").otherwise("deliver")),
            "outcome": F.when(transfer, outcome),
            "settled_ts_ns": F.when(transfer, told),
            "settled_frame_no": F.when(transfer & stands.isNotNull(), F.col("settled_frame_no")),
            "transaction": F.when(transfer, F.coalesce("end.result", "transaction")),
            "exchange": F.when(transfer & published, F.coalesce("said.destination", F.lit(""))),
            "queue": F.col("subscription.queue"),
            "link": F.when(transfer & ~published, F.col("said.destination")),
            "browsed": F.when(transfer & ~published, F.col("said.acquire_mode") == NOT_ACQUIRED),
            "delivery_id": F.col("said.command_id"),
            "own_channel": F.col("channel"),
            "credited": F.struct("said.unit", "said.value", "said.flow_mode"),
            "said": _shared(),
        }
    ).drop("end", "answer_hidden", "transaction_key", "status")


def _shared() -> Column:
    """What all families state: see `sessions.SAID`."""
    nothing = F.lit(None)
    exception = named(["execution.exception"])
    error = F.when(exception, F.struct(F.lit(None).cast("string").alias("condition"), F.col("said.description")))
    return F.struct(
        nothing.cast("int").alias("remote_channel"),
        F.try_validate_utf8(F.col("said.name").cast("string")).alias("name"),
        F.when(exception, F.col("said.error_code")).otherwise(F.col("said.code")).alias("code"),
        nothing.cast("bigint").alias("incoming_window"),
        nothing.cast("bigint").alias("outgoing_window"),
        error.alias("error"),
        looked_up(MODES).alias("mode"),
    ).cast(SAID)
