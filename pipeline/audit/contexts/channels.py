"""Context 'incarnations': one row per channel incarnation of the classic family, with its methods and messages.

An incarnation lasts from an open of a channel number to the next open; `channel_life` numbers them.

    methods       array of (sender, name, class_id, method_id, times, first_frame, last_frame), by method and sender
    close         the first channel.close: sender, frame_no, ts_ns and its arguments
    close_ok_ns   time of its channel.close-ok
    ended         the channel or its connection was closed
    until_ns      end of the incarnation, or of the capture of its connection
    still_open    it was opened, as far as the capture shows, and neither side closed it
    open_channels number of these on the connection
    unsettled, requeued, rejected, redelivered, delivered, persistent: messages; `first_*`: frame of the first of them

Context 'rates': methods with a limit on their rate.

opened_before_ns  time of the channel.open on this connection that is `limit_per_minute` of CH-11 opens before this one
got_before_ns     the same for basic.get on this channel and CO-07
empty_share       share of the gets on the channel so far that were answered with get-empty

Context 'tags': methods that name a consumer tag, with the previous method that named it.

    consumer_tag
    tag_was      the previous basic.consume, consume-ok, cancel or cancel-ok with this tag in this channel incarnation:
                 name, sender, frame_no
    tag_was_anywhere  the same on any channel of the connection, with channel and channel_life

Deliveries are rows as well, except those to a consumer that was started before and not cancelled before.

Context 'request_reply': one row per synchronous request and one per reply, classic family.

    asks           the row is a request that waits for a reply
    reply_ns       time of its reply
    open_until     of the earlier requests of the same side in this channel incarnation: frame of the last reply to
                   them, NEVER if one has no reply; null: there are none
    next_close_ns  time at which the channel was closed after this row
    replies        the row is a reply
    paired         it is the reply to a request that waited
    no_wait_before the last request of its group (methods that share replies) had no-wait set
    overtaken      the next row of the group is a request without a reply

Packets may have been captured out of order: a reply before its request is taken as the reply to an unanswered request
right after it, which then asks for nothing.

Table methods has the frame of the reply in the row of the request; a mark row is inserted before each such reply.
"""

from __future__ import annotations

from collections.abc import Iterable

from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from codec.sides import SIDES
from pipeline.audit.contexts.messages import CHANNEL_KINDS
from pipeline.audit.contexts.sources import CHANNEL, CONNECTION_VERSIONS, EARLIER, Context, Relation, Sources, columns
from pipeline.audit.detectors import NEVER, Sql, sql_in
from udfs.roles import CONNECTION_CHANNEL, request_groups

METHOD_COLUMNS = (
    "connection_id", "channel", "frame_no", "ts_ns", "version", "sender", "name", "class_id", "method_id",
    "content_frame_no",
)  # fmt: skip
COUNTED_METHOD = ("sender", "name", "class_id", "method_id", "times", "first_frame", "last_frame")
OF_CHANNEL: Sql = "PARTITION BY connection_id, channel ORDER BY frame_no"
# How often the channel of a row was opened so far.
CHANNEL_LIFE: Sql = f"count(CASE name WHEN 'channel.open' THEN 1 END) OVER ({OF_CHANNEL} ROWS UNBOUNDED PRECEDING)"


def channel_methods(values: Sql, names: Iterable[str] = ()) -> Sql:
    """Unusual methods of the classic family on channels: METHOD_COLUMNS, `channel_life` as in the tables, and `values`
    computed from the other columns. `names`: only these methods, and channel.open."""
    chosen = sql_in("name", ("channel.open", *names)) if names else "true"
    # Project before sorting: arguments are wide.
    return f"""SELECT *, {CHANNEL_LIFE} AS channel_life
               FROM (SELECT {columns(METHOD_COLUMNS)}, {values} FROM unusual_methods WHERE {chosen})"""


# Rows channel.close, and channel.open.
CHANNEL_CLOSES: Sql = channel_methods(
    "try_variant_get(arguments, '$', 'struct<reply_code int, reply_text string, class_id int, method_id int>') AS args",
    ("channel.close",),
)
OK_TIMES: Sql = ", ".join(
    f"min(CASE WHEN name = 'channel.close-ok' AND sender = '{side}' THEN first_ns END) AS {side}_ok_ns"
    for side in SIDES
)
# Nearly all methods lie in stretches with a known incarnation: only the others need sorting. The arguments of closes
# are read separately, since that is slow.
INCARNATIONS: Sql = f"""
    SELECT *, CASE close.sender WHEN 'client' THEN server_ok_ns ELSE client_ok_ns END AS close_ok_ns,
           connection_ended OR close IS NOT NULL AS ended, least(c.close.ts_ns, c.last_ns) AS until_ns,
           count_if(still_open) OVER (PARTITION BY connection_id) AS open_channels
    FROM (SELECT *, c.close.frame_no IS NOT NULL OR coalesce(c.tcp_end, 'none') != 'none' AS connection_ended,
                 close IS NULL AND NOT (channel_life = 0 AND c.from_start) AS still_open
          FROM (SELECT {columns(CHANNEL)}, any_value(version) AS version,
                       collect_list(struct({columns(COUNTED_METHOD)})) AS methods, {OK_TIMES},
                       max(last_frame) AS last_frame
                FROM (SELECT {columns(CHANNEL)}, version, {columns(COUNTED_METHOD[:4])}, sum(times) AS times,
                             min(first_frame) AS first_frame, max(last_frame) AS last_frame, min(first_ns) AS first_ns
                      FROM (SELECT connection_id, channel, stretch_life AS channel_life, version,
                                   {columns(COUNTED_METHOD)}, first_ns
                            FROM transfer_counts WHERE stretch_life IS NOT NULL
                            UNION ALL
                            SELECT {columns(CHANNEL)}, version, {columns(COUNTED_METHOD[:4])}, 1L, frame_no, frame_no,
                                   ts_ns
                            FROM ({channel_methods("stretch_life")}) WHERE stretch_life IS NULL)
                      GROUP BY {columns(CHANNEL)}, version, {columns(COUNTED_METHOD[:4])})
                GROUP BY {columns(CHANNEL)})
          LEFT JOIN (SELECT {columns(CHANNEL)}, min(struct(frame_no, ts_ns, sender, args.*)) AS close
                     FROM ({CHANNEL_CLOSES})
                     WHERE name = 'channel.close' GROUP BY {columns(CHANNEL)}) USING ({columns(CHANNEL)})
          LEFT JOIN (SELECT {columns(CHANNEL)}, {", ".join(f"sum({name}) AS {name}" for name in CHANNEL_KINDS)},
                            {", ".join(f"min(first_{name}) AS first_{name}" for name in CHANNEL_KINDS)}
                     FROM message_counts GROUP BY {columns(CHANNEL)}) USING ({columns(CHANNEL)})
          LEFT JOIN connection_facts USING (connection_id))"""


# Column -> the rule whose limit is its offset in rows.
LOOKS_BACK = {"opened_before_ns": "CH-11", "got_before_ns": "CO-07"}


def rates(sources: Sources) -> Sql | None:
    offsets = {
        name: int(sources.limit(rule, "limit_per_minute"))
        for name, rule in LOOKS_BACK.items()
        if rule in sources.parameters
    }
    if max(sources.count("control_methods", name) for name in ("opens", "gets")) <= min(offsets.values(), default=0):
        return None
    back = ", ".join(
        f"lag(ts_ns, {offsets[name]}) OVER own AS {name}" if name in offsets else f"CAST(NULL AS BIGINT) AS {name}"
        for name in LOOKS_BACK
    )
    return f"""
        SELECT *, {back}, avg(CASE WHEN reply_name <=> 'basic.get-empty' THEN 1 ELSE 0 END) OVER so_far AS empty_share
        FROM (SELECT *, {CHANNEL_LIFE} AS channel_life, CASE name WHEN 'basic.get' THEN channel END AS on_channel
              FROM (SELECT connection_id, frame_no, ts_ns, version, channel, name, reply_name
                    FROM control_methods WHERE name IN ('channel.open', 'basic.get')))
        WINDOW own AS (PARTITION BY connection_id, name, on_channel ORDER BY frame_no),
               so_far AS (PARTITION BY connection_id, name, on_channel ORDER BY frame_no ROWS UNBOUNDED PRECEDING)"""


BEGINS = ("basic.consume", "basic.consume-ok")
CONSUMER_METHODS = (*BEGINS, "basic.cancel", "basic.cancel-ok")
CONSUMER_TAG: Sql = "try_variant_get(arguments, '$.consumer_tag', 'string') AS consumer_tag"
TAGGED: Sql = f"""
    SELECT * FROM ({channel_methods(CONSUMER_TAG, CONSUMER_METHODS)})
    WHERE consumer_tag != '' AND name != 'channel.open'"""
# Most consumers get all of their deliveries between start and cancel: these did not, perhaps.
ODD_CONSUMERS: Sql = f"""
    SELECT {columns(CHANNEL)}, link, version, begun, cancelled
    FROM (SELECT * FROM message_counts WHERE operation = 'deliver' AND link != '')
    JOIN {CONNECTION_VERSIONS} USING (connection_id)
    LEFT JOIN (SELECT {columns(CHANNEL)}, consumer_tag AS link,
                      min(CASE WHEN {sql_in("name", BEGINS)} THEN frame_no END) AS begun,
                      coalesce(min(CASE WHEN NOT {sql_in("name", BEGINS)} THEN frame_no END), {NEVER}) AS cancelled
               FROM tagged GROUP BY {columns(CHANNEL)}, consumer_tag) USING ({columns(CHANNEL)}, link)
    WHERE {sql_in("version", CONNECTION_CHANNEL)}
          AND NOT coalesce(first_frame > begun AND last_frame < cancelled, false)
"""


def tags(sources: Sources) -> Sql:
    own = "connection_id, channel, channel_life, consumer_tag, frame_no, ts_ns, version, sender, name, content_frame_no"
    rows = f"SELECT {own} FROM tagged"
    if sources.count("odd_consumers"):  # deliveries are in table messages, which has their tags as a column
        rows += f"""
            UNION ALL
            SELECT {columns(CHANNEL)}, link, first_frame_no, ts_ns, version, 'server', 'basic.deliver', first_frame_no
            FROM (SELECT * FROM messages WHERE operation = 'deliver')
            JOIN odd_consumers USING ({columns(CHANNEL)}, link)
            WHERE NOT coalesce(first_frame_no > begun AND first_frame_no < cancelled, false)"""
    statement = (
        f"last(CASE WHEN {sql_in('name', CONSUMER_METHODS)} THEN "
        "struct(name, sender, frame_no, channel, channel_life) END, true)"
    )
    before = f"ORDER BY frame_no {EARLIER}"
    return f"""
        SELECT *
        FROM (SELECT *, {statement} OVER here AS tag_was, {statement} OVER anywhere AS tag_was_anywhere
              FROM ({rows})
              WINDOW here AS (PARTITION BY {columns(CHANNEL)}, consumer_tag {before}),
                     anywhere AS (PARTITION BY connection_id, consumer_tag {before}))
        LEFT JOIN connection_facts USING (connection_id)"""


MARK, ROW = 0, 1  # places of rows with the same frame_no
IDS = 1 << 16  # of the methods of a class


def has(pairs: str, versions: set[str]) -> Sql:
    """True on rows whose method has `pairs` ('replies' or 'reply_to') in their version, one of `versions`. By ids: 0-9
    has two methods basic.recover, of which one has a reply."""
    codes = {
        version: sorted(m.class_id * IDS + m.method_id for m in methods(version) if getattr(m, pairs))
        for version in CLASSIC_VERSIONS
        if version in versions
    }
    cases = (
        f"WHEN '{version}' THEN class_id * {IDS} + method_id IN ({', '.join(map(str, found))})"
        for version, found in codes.items()
    )
    return f"coalesce(CASE version {' '.join(cases)} ELSE false END, false)"


def group_of(names: set[str]) -> Sql:
    """The request/reply group of each of these methods, by name."""
    cases = (f"WHEN '{name}' THEN '{group}'" for name, group in request_groups().items() if name in names)
    return f"CASE name {' '.join(cases)} ELSE NULL END"


COLUMNS: Sql = (
    "connection_id, channel, version, frame_no, ts_ns, sender, name, class_id, method_id, status, arguments, "
    "reply_frame_no, reply_latency_ns"
)
ON_CHANNEL: Sql = "PARTITION BY connection_id, channel"
IN_GROUP: Sql = f"{ON_CHANNEL}, request_group ORDER BY frame_no, place"
LONELY: Sql = "asks AND reply_frame_no IS NULL"


def latest(side: str) -> Sql:
    """Of the earlier requests of a side on the channel: the last incarnation, and the frame of the last reply in it."""
    return (
        f"max(CASE WHEN asks AND sender = '{side}' THEN "
        f"struct(channel_life, coalesce(reply_frame_no, {NEVER}) AS until) END) OVER before"
    )


def request_reply(sources: Sources) -> Sql:
    versions = sources.versions & {*CLASSIC_VERSIONS}
    asked, answer = (has(pairs, versions) for pairs in ("replies", "reply_to"))
    rows = f"SELECT {COLUMNS} FROM control_methods"
    if sources.count("control_methods", "gets"):  # of the methods that carry messages only basic.get-ok
        rows += f" UNION ALL SELECT {COLUMNS} FROM methods WHERE name = 'basic.get-ok'"
    # Spark evaluates a window that reaches to the last row anew for each row: `backwards` is sorted backwards.
    return f"""
        SELECT * EXCEPT (latest),
               CASE latest.channel_life WHEN channel_life THEN latest.until END AS open_until
        FROM (SELECT *, CASE sender WHEN 'client' THEN {latest("client")} WHEN 'server' THEN {latest("server")} END
                     AS latest,
                     min(CASE WHEN name IN ('channel.close', 'connection.close') THEN ts_ns END) OVER backwards
                         AS next_close_ns,
                     last(CASE place WHEN {ROW} THEN no_wait END, true) OVER ({IN_GROUP} {EARLIER}) AS no_wait_before
              FROM (SELECT * EXCEPT (asks, answered_early),
                           asks AND NOT (reply_frame_no IS NULL AND coalesce(answered_early, false)) AS asks,
                           count(CASE WHEN name = 'channel.open' AND place = {ROW} THEN 1 END) OVER
                               ({ON_CHANNEL} ORDER BY frame_no, place) AS channel_life
                    FROM (SELECT *, lag(place = {ROW} AND replies AND NOT coalesce(paired, false)) OVER
                                 ({IN_GROUP}) AS answered_early
                          FROM (SELECT *, lag(place = {MARK}) OVER ({IN_GROUP}) AS paired,
                                       lead(place = {ROW} AND {LONELY}) OVER ({IN_GROUP}) AS overtaken
                                FROM (SELECT * EXCEPT (frame_no, at), at.*,
                                             at.place = {ROW} AND NOT coalesce(no_wait, true) AS asks
                                      FROM (SELECT *, explode(concat(
                                                       array(struct(frame_no, {ROW} AS place)),
                                                       transform(array_compact(array(reply_frame_no)),
                                                                 frame -> struct(frame AS frame_no, {MARK} AS place))
                                                   )) AS at
                                            FROM (SELECT *, ts_ns + reply_latency_ns AS reply_ns,
                                                         CASE WHEN asked THEN coalesce(try_variant_get(
                                                             arguments, '$.no_wait', 'boolean'), false) END AS no_wait
                                                  FROM (SELECT *, {asked} AS asked, {answer} AS replies,
                                                               {group_of({*sources.methods, "basic.get-ok"})}
                                                                   AS request_group
                                                        FROM ({rows}))
                                                  WHERE asked OR replies))))))
              WINDOW before AS ({ON_CHANNEL} ORDER BY frame_no, place {EARLIER}),
                     backwards AS ({ON_CHANNEL} ORDER BY frame_no DESC, place DESC {EARLIER}))
        LEFT JOIN connection_facts USING (connection_id)
        WHERE place = {ROW}"""


RELATIONS = {"tagged": Relation(TAGGED, materialized=False), "odd_consumers": Relation(ODD_CONSUMERS)}

CONTEXTS = {
    "incarnations": Context(INCARNATIONS, CHANNEL),
    "rates": Context(rates, CHANNEL),
    "tags": Context(tags, CHANNEL, full_scan=True),
    "request_reply": Context(request_reply, CHANNEL, versions=CLASSIC_VERSIONS),
}
