"""Prefilter: nearly all frames are routine, and no rule can be about them. They are dropped before anything is sorted.

A frame is routine if it carries or settles a message correctly: complete, without notes, sent by the right side, no
larger than negotiated, between connection.open-ok and the first close. The state that rules keep of a channel does not
change while only messages pass. So a method that carries or settles a message is routine within the longest stretch of
its channel between two methods that change the state of the channel, provided that the channel is open there, without
flow control and transactions, and no rule reads its arguments. All other frames are unusual.

Routine methods are only counted (`transfer_counts`); unusual ones are read one by one (`unusual_methods`).

Context 'frames': one row per unusual frame of any type, with its connection (`c`).

Context 'events': one row per unusual method of the classic family on a channel other than 0, with its arguments
(`args`), the states from earlier rows of the channel (`detectors.STATES`), its `reply_name`, the method that the
server's next channel.close in the same incarnation names (`blamed`: class_id, method_id), and its connection (`c`).

A new rule in context 'frames' or 'events' about rows that are routine so far needs a change here.
"""

from __future__ import annotations

from codec.amqp.classic.tables import CLASSIC_VERSIONS
from pipeline.audit.contexts.connections import FRAME_COLUMNS, FRAME_OF_METHOD, arguments_struct
from pipeline.audit.contexts.messages import KINDS
from pipeline.audit.contexts.sources import CHANNEL, EARLIER, Context, Relation, Sources, columns
from pipeline.audit.detectors import LONGEST_NAME, NEVER, ODD_OCTETS, Sql, needed_states, sql_in
from udfs.roles import METHOD_FRAMES, SPANS

LONG = 1000  # frames: shorter stretches are not worth a row of `stretches`
# Methods that carry or settle messages -> their sender. A server settles only with confirms, an extension of 0-9-1.
TRANSFER_SENDERS: dict[str, Sql] = {
    "basic.publish": "sender = 'client'",
    "basic.deliver": "sender = 'server'",
    "basic.get-ok": "sender = 'server'",
    "basic.ack": "(sender = 'client' OR version = '0-9-1')",
    "basic.reject": "sender = 'client'",
}
# The same for 0-10 and 1.0: there are many, and no rule is about a single one of them.
SESSION_TRANSFERS = (
    "message.transfer", "message.accept", "session.completed", "session.known-completed", "transfer", "disposition",
    "flow",
)  # fmt: skip
# Methods that change the state of a channel.
STEERS: Sql = "name LIKE 'channel.%' OR name IN ('confirm.select', 'tx.select')"
# Column exchange and delivery_tag of table methods.
ODD_ARGUMENTS: Sql = (
    f"coalesce(delivery_tag = 0 OR octet_length(exchange) > {LONGEST_NAME} OR exchange RLIKE {ODD_OCTETS}, false)"
)
# Only these versions have tickets. They are in `arguments`, which is slow to read.
HAVE_TICKETS = ("0-8", "0-9")
NO_TICKET: Sql = (
    "({} AND exists(array(try_variant_get(arguments, '$.ticket', 'int')), ticket -> coalesce(ticket = 0, false)))"
)
CLASSIC: Sql = sql_in("version", CLASSIC_VERSIONS)
# Methods on channels other than that of the connection.
ON_CHANNEL: Sql = f"{CLASSIC} AND {sql_in('frame_type', METHOD_FRAMES)} AND NOT channel <=> 0"
RIGHT_SENDER: Sql = " OR ".join(f"name = '{name}' AND {sender}" for name, sender in TRANSFER_SENDERS.items())
WHOLE: Sql = f"status = 'ok' AND coalesce(size(notes), 0) = 0 AND NOT {sql_in('frame_type', SPANS)}"

# State of a channel after each method in STEERS.
CHANNEL_STATE: dict[str, Sql] = {
    "life": "count(CASE WHEN name = 'channel.open' THEN 1 END)",
    "was": "last(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok') THEN name END, true)",
    "odd": "count(CASE WHEN name LIKE 'channel.flow%' OR name = 'tx.select' THEN 1 END)",
    "confirmed": "max(CASE WHEN name = 'confirm.select' THEN frame_no END)",
    "opened": "max(CASE WHEN name = 'channel.open' THEN frame_no END)",
}
COUNT_KEYS = ("connection_id", "channel", "version", "stretch_life", "sender", "name", "class_id", "method_id")


# Rows of table methods except those that carry or settle messages: few. Arguments (VARIANT) are slower to read than all
# other columns together, and are read here once.
CONTROL_METHODS: Sql = f"""
    SELECT {FRAME_OF_METHOD}, ts, arguments, exchange, queue, reply_frame_no, reply_name, reply_latency_ns
    FROM methods WHERE NOT coalesce({sql_in("name", (*TRANSFER_SENDERS, *SESSION_TRANSFERS))}, false)"""


def negotiated(sources: Sources) -> Sql:
    """Negotiated limits by connection: messages pass after frame `since` and before `until`, in frames no larger than
    `largest`, on channels up to `last_channel`."""
    return f"""
        SELECT connection_id,
               coalesce(c.open_ok.frame_no, CASE WHEN c.open IS NULL AND c.tune_ok IS NULL THEN 0 END) AS since,
               coalesce(least(c.client_close.frame_no, c.server_close.frame_no, c.close_ok.frame_no,
                              c.redirect.frame_no), {NEVER}) AS until,
               CASE WHEN c.tune_ok IS NULL THEN {sources.limit("HS-11", "minimum_bytes")}
                   ELSE coalesce(nullif(frame_max, 0), {NEVER}) END AS largest,
               coalesce(nullif(channel_max, 0), {NEVER}) AS last_channel,
               greatest(c.client_open.frame_no, c.server_open.frame_no) AS opened,
               coalesce(least(c.client_end.frame_no, c.server_end.frame_no), {NEVER}) AS ended
        FROM connections LEFT JOIN first_rows USING (connection_id)"""


def flagged_frames(sources: Sources) -> Sql:
    """FRAME_COLUMNS with `unusual_frame`: frame_no if the frame is unusual, else null."""
    # A frame that carries or settles a message, or a part of one, within the negotiated limits.
    carries = (
        f"{CLASSIC} AND channel > 0 AND frame_no > since AND frame_no < until AND size <= largest AND "
        f"(frame_type = 'body' AND payload_size > 0 OR "
        f"frame_type = 'header' AND body_size <= {sources.limit('CT-17', 'limit_bytes')} OR "
        f"frame_type = 'method' AND ({RIGHT_SENDER}))"
    )
    # Of 0-10 and 1.0 rules ask only about what is not whole or too large, about redirects, and about empty frames
    # outside of open and close.
    other = (
        f"NOT {CLASSIC} AND error IS NULL AND CASE version "
        "WHEN '1.0' THEN frame_type != 'empty' OR coalesce(frame_no > opened, false) AND frame_no < ended "
        "ELSE size <= largest AND frame_no < until END"
    )
    return f"""
        SELECT /*+ BROADCAST(negotiated) */ {columns(FRAME_COLUMNS)}, first_ts_ns,
               CASE WHEN NOT coalesce({WHOLE} AND (({carries}) OR {other}), false) THEN frame_no END AS unusual_frame
        FROM frames LEFT JOIN negotiated USING (connection_id)"""


def unusual_frames(sources: Sources) -> Sql:
    """The unusual rows of table frames."""
    if not sources.count("seconds", "unusual"):
        return f"SELECT {columns(FRAME_COLUMNS)} FROM frames WHERE false"
    unusual = sources.only("seconds", "frame_no", "unusual_frame")
    return f"SELECT {columns(FRAME_COLUMNS)} FROM flagged_frames WHERE unusual_frame IS NOT NULL AND {unusual}"


# Connections that the capture begins in the middle of.
MIDSTREAM: Sql = "SELECT connection_id, true AS midstream FROM known_connections WHERE NOT start"


# The longest stretch of each channel without methods in STEERS in which messages may pass, if it is LONG:
# connection_id, channel; after `from_frame` and before `until_frame`; `life`: channel_life; `confirms`. Where the
# capture begins in the middle of a connection, what comes before the first steering method is such a stretch, of which
# rules know that they know nothing; a channel that is not named is never steered.
STATES: Sql = ", ".join(f"{value} OVER so_far AS {name}" for name, value in CHANNEL_STATE.items())
STRETCHES: Sql = f"""
    SELECT connection_id, channel, longest.* EXCEPT (length)
    FROM (SELECT connection_id, channel, max(greatest(
              CASE WHEN was = 'channel.open' AND odd = 0 AND until_frame - from_frame > {LONG} THEN
                  struct(until_frame - from_frame AS length, from_frame, until_frame, life,
                         coalesce(confirmed > opened, false) AS confirms) END,
              CASE WHEN first AND midstream THEN
                  struct(from_frame + 1 AS length, -1L AS from_frame, from_frame AS until_frame, 0L AS life,
                         true AS confirms) END)) AS longest
          FROM (SELECT connection_id, channel, midstream, frame_no AS from_frame,
                       coalesce(lead(frame_no) OVER own, {NEVER}) AS until_frame,
                       lag(frame_no) OVER own IS NULL AS first, {STATES}
                FROM control_methods LEFT JOIN midstream USING (connection_id)
                WHERE ({STEERS}) AND {CLASSIC} AND frame_type = 'method' AND channel > 0
                WINDOW own AS (PARTITION BY connection_id, channel ORDER BY frame_no),
                       so_far AS (PARTITION BY connection_id, channel ORDER BY frame_no
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))
          GROUP BY connection_id, channel)
    WHERE longest IS NOT NULL"""


# A method that carries or settles a message, within the stretch of its channel.
INSIDE: Sql = (
    f"{CLASSIC} AND ({RIGHT_SENDER}) AND "
    "(frame_no > from_frame AND frame_no < until_frame OR midstream AND from_frame IS NULL)"
)


def transfers(sources: Sources) -> Sql:
    """Methods on channels that carry or settle messages: those of table methods, `stretch_life` (`channel_life` within
    the stretch of its channel, else null) and `routine`."""
    immediate, joined = "false", ""
    if sources.count("message_counts", "immediate"):
        immediate = "coalesce(immediate, false)"
        joined = f"""LEFT JOIN (SELECT connection_id, first_frame_no AS frame_no, immediate
                                FROM messages WHERE {KINDS["immediate"]}) USING (connection_id, frame_no)"""
    conditions = [
        "stretch_life IS NOT NULL",
        "(sender = 'client' OR name != 'basic.ack' OR coalesce(confirms, midstream))",
        "channel <= last_channel",
        "status = 'ok'",
        f"NOT {ODD_ARGUMENTS}",
        f"NOT {immediate}",
    ]
    if sources.versions & {*HAVE_TICKETS}:
        conditions.append(f"NOT {NO_TICKET.format(sql_in('version', HAVE_TICKETS))}")
    return f"""
        SELECT *, coalesce({" AND ".join(conditions)}, false) AS routine
        FROM (SELECT /*+ BROADCAST(stretches, midstream, negotiated) */ *,
                     CASE WHEN {INSIDE} THEN coalesce(life, 0L) END AS stretch_life
              FROM (SELECT * FROM methods WHERE {ON_CHANNEL} AND {sql_in("name", TRANSFER_SENDERS)})
              LEFT JOIN stretches USING (connection_id, channel)
              LEFT JOIN midstream USING (connection_id)
              LEFT JOIN (SELECT connection_id, last_channel FROM negotiated) AS negotiated USING (connection_id)
              {joined})"""


# Counts of these methods; all texts are keys: with a text among the aggregates Spark would sort.
TRANSFER_COUNTS: Sql = f"""
    SELECT {columns(COUNT_KEYS)}, unusual_frame, count(1) AS times, min(frame_no) AS first_frame,
           max(frame_no) AS last_frame, min(ts_ns) AS first_ns
    FROM (SELECT *, CASE WHEN NOT routine THEN frame_no END AS unusual_frame FROM transfers)
    GROUP BY {columns(COUNT_KEYS)}, unusual_frame"""


def unusual_methods(sources: Sources) -> Sql:
    """Unusual methods on channels: FRAME_COLUMNS, `arguments`, `reply_name` and `stretch_life`."""
    control = f"""SELECT {columns(FRAME_COLUMNS)}, arguments, reply_name, CAST(NULL AS BIGINT) AS stretch_life
                  FROM control_methods WHERE {ON_CHANNEL}"""
    if not sources.count("transfer_counts", "unusual"):
        return control
    # Arguments are slow to read: only those of a few frames are read.
    unusual = sources.only("transfer_counts", "frame_no", "unusual_frame")
    return f"""{control} UNION ALL
               SELECT {FRAME_OF_METHOD}, arguments, reply_name, stretch_life
               FROM transfers WHERE NOT routine AND {unusual}"""


RELATIONS = {
    "control_methods": Relation(
        CONTROL_METHODS,
        {
            "names": "collect_set(name)",
            "opens": "count(CASE name WHEN 'channel.open' THEN 1 END)",
            "gets": "count(CASE name WHEN 'basic.get' THEN 1 END)",
        },
    ),
    "negotiated": Relation(negotiated),
    "flagged_frames": Relation(flagged_frames, materialized=False),
    "unusual_frames": Relation(unusual_frames),
    "midstream": Relation(MIDSTREAM, materialized=False),
    "stretches": Relation(STRETCHES),
    "transfers": Relation(transfers, materialized=False),
    "transfer_counts": Relation(TRANSFER_COUNTS, {"unusual": "count(unusual_frame)"}),
    "unusual_methods": Relation(unusual_methods),
}

# Arguments of methods on channels by type, context 'events'.
CHANNEL_ARGUMENTS = {
    "string": (
        "exchange", "routing_key", "queue", "consumer_tag", "type", "source", "destination", "identifier", "reply_text",
        "realm",
    ),
    "bigint": ("delivery_tag",),
    "int": ("reply_code", "class_id", "method_id", "ticket", "prefetch_count"),
    "boolean": (
        "active", "multiple", "requeue", "no_wait", "no_ack", "exclusive", "passive", "durable", "auto_delete",
        "internal", "mandatory", "immediate", "redelivered", "global",
    ),
}  # fmt: skip
# The method that a channel.close of the server names; of a channel.open it is null.
BLAMED: Sql = """CASE WHEN name = 'channel.open' OR name = 'channel.close' AND sender = 'server'
                     THEN struct(args.class_id, args.method_id) END"""


def events(sources: Sources) -> Sql:
    """Context 'events', with the states of the channel that the rules need."""
    states = "".join(f"{sql} OVER before AS {name}, " for name, sql in needed_states(sources.rules).items())
    opens = "CASE name WHEN 'channel.open' THEN 1 END"
    return f"""
        SELECT *
        FROM (SELECT *, {states} count({opens}) OVER before + coalesce({opens}, 0) AS channel_life,
                     lead({BLAMED}) IGNORE NULLS OVER own AS blamed
              FROM (SELECT {columns(FRAME_COLUMNS)}, {arguments_struct(CHANNEL_ARGUMENTS)} AS args, reply_name
                    FROM unusual_methods)
              WINDOW own AS (PARTITION BY connection_id, channel ORDER BY frame_no),
                     before AS (PARTITION BY connection_id, channel ORDER BY frame_no {EARLIER}))
        LEFT JOIN connection_facts USING (connection_id)"""


CONTEXTS = {
    "frames": Context(
        "SELECT * FROM unusual_frames LEFT JOIN connection_facts USING (connection_id)",
        ("connection_id", "channel"),
        rows="unusual_frames",
    ),
    "events": Context(events, CHANNEL, rows="unusual_methods"),
}
