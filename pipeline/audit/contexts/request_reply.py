"""Context 'request_reply': one row per synchronous request and one per reply, classic family.

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

from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from pipeline.audit.contexts.sources import CHANNEL, Context, Sources
from pipeline.audit.detectors import NEVER, Sql, sql_in
from udfs.roles import request_groups

MARK, ROW = 0, 1  # places of rows with the same frame_no


def requests() -> dict[str, set[str]]:
    """Methods that have a reply, by version."""
    return {version: {m.name for m in methods(version) if m.replies} for version in CLASSIC_VERSIONS}


def replies() -> dict[str, set[str]]:
    """Methods that are only replies, by version."""
    return {version: {m.name for m in methods(version) if m.reply_to and not m.replies} for version in CLASSIC_VERSIONS}


def name_in_version(names: dict[str, set[str]], versions: set[str]) -> Sql:
    """True on rows whose name is one of `names` of their version, for `versions`."""
    cases = (
        f"WHEN '{version}' THEN {sql_in('name', sorted(names[version]))}" for version in names if version in versions
    )
    return f"coalesce(CASE version {' '.join(cases)} ELSE false END, false)"


def group_of(names: set[str]) -> Sql:
    """The request/reply group of each of these methods, by name."""
    cases = (f"WHEN '{name}' THEN '{group}'" for name, group in request_groups().items() if name in names)
    return f"CASE name {' '.join(cases)} ELSE NULL END"


COLUMNS: Sql = (
    "connection_id, channel, version, frame_no, ts_ns, sender, name, arguments, reply_frame_no, reply_latency_ns"
)
ON_CHANNEL: Sql = "PARTITION BY connection_id, channel"
IN_GROUP: Sql = f"{ON_CHANNEL}, request_group ORDER BY frame_no, place"
BEFORE: Sql = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
LONELY: Sql = "asks AND reply_frame_no IS NULL"


def latest(side: str) -> Sql:
    """Of the earlier requests of a side on the channel: the last incarnation, and the frame of the last reply in it."""
    return (
        f"max(CASE WHEN asks AND sender = '{side}' THEN "
        f"struct(channel_life, coalesce(reply_frame_no, {NEVER}) AS until) END) OVER before"
    )


def request_reply(sources: Sources) -> Sql:
    """Context 'request_reply'."""
    versions = sources.versions & {*CLASSIC_VERSIONS}
    asked, answer = (name_in_version(names, versions) for names in (requests(), replies()))
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
                     last(CASE place WHEN {ROW} THEN no_wait END, true) OVER ({IN_GROUP} {BEFORE}) AS no_wait_before
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
              WINDOW before AS ({ON_CHANNEL} ORDER BY frame_no, place {BEFORE}),
                     backwards AS ({ON_CHANNEL} ORDER BY frame_no DESC, place DESC {BEFORE}))
        LEFT JOIN connection_facts USING (connection_id)
        WHERE place = {ROW}"""


CONTEXTS = {"request_reply": Context(request_reply, CHANNEL, versions=CLASSIC_VERSIONS)}
