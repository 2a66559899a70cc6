"""CH: opening, using and closing channels."""

from __future__ import annotations

from pipeline.audit.constants import hard_errors, reply_codes
from pipeline.audit.contexts.channels import incarnations, rates
from pipeline.audit.detector import Detector, Sql, State

# What happened before a row in its channel incarnation; other groups read these as well.
STATES = {
    "opened_frame": State("max(CASE WHEN name = 'channel.open' THEN frame_no END)"),
    "channel_was": State(
        "last(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok') THEN name END, true)"
    ),
    "unanswered_closes": State("sum(CASE name WHEN 'channel.close' THEN 1 WHEN 'channel.close-ok' THEN -1 END)"),
    "client_close_frame": State("max(CASE WHEN name = 'channel.close' AND sender = 'client' THEN frame_no END)"),
    "server_close_frame": State("max(CASE WHEN name = 'channel.close' AND sender = 'server' THEN frame_no END)"),
}
CONTEXTS = {"incarnations": incarnations, "rates": rates}

OWN_CLOSE: Sql = "CASE sender WHEN 'client' THEN client_close_frame ELSE server_close_frame END"
# Who is blamed for what, in a close; 0 stands for "nothing in particular".
BLAME = {"code": "args.reply_code", "text": "args.reply_text", "class": "args.class_id", "method": "args.method_id"}

DETECTORS = (
    Detector(
        "CH-01",
        "events",
        when="name != 'channel.open' AND name NOT LIKE 'connection.%' AND "
        "(channel_was IS NULL AND c.from_start OR channel_was = 'channel.close-ok') AND "
        "NOT (name = 'channel.close-ok' AND coalesce(unanswered_closes, 0) > 0)",
        evidence={"observed": "name", "expected": "'channel.open'", "channel": "channel", "after": "channel_was"},
        offender="sender",
    ),
    Detector(
        "CH-02",
        "events",
        when="name = 'channel.open' AND channel_was = 'channel.open'",
        evidence={"observed": "name", "channel": "channel", "opened_in_frame": "opened_frame"},
    ),
    Detector(
        "CH-03",
        "events",
        when="c.channel_max > 0 AND channel > c.channel_max",
        evidence={"observed": "channel", "negotiated": "c.channel_max", "method": "name"},
        offender="sender",
    ),
    Detector(
        "CH-04",
        "events",
        when="name NOT IN ('channel.open', 'channel.close', 'channel.close-ok') AND channel_was = 'channel.close' AND "
        f"({OWN_CLOSE}) > coalesce(opened_frame, 0)",
        evidence={"observed": "name", "expected": "'channel.close-ok'", "closed_in_frame": OWN_CLOSE},
        offender="sender",
    ),
    Detector(
        "CH-05",
        "incarnations",
        when="close.frame_no IS NOT NULL AND "
        "coalesce(close_ok_ns, until_ns) - close.ts_ns > {limit_seconds} * 1000000000D",
        evidence={
            "observed": "CASE WHEN close_ok_ns IS NULL THEN 'no answer' ELSE 'late answer' END",
            "expected": "concat('channel.close-ok within ', {limit_seconds}, ' s')",
            "waited_s": "(coalesce(close_ok_ns, until_ns) - close.ts_ns) / 1000000000D",
        },
        frame="close.frame_no",
        at_ns="coalesce(close_ok_ns, until_ns)",
        offender="CASE close.sender WHEN 'client' THEN 'server' ELSE 'client' END",
    ),
    Detector(
        "CH-06",
        "events",
        when="name = 'channel.open' AND channel_was = 'channel.close'",
        evidence={"observed": "name", "expected": "'channel.close-ok'", "channel": "channel"},
    ),
    Detector(
        "CH-07",
        "incarnations",
        when="connection_ended AND close.frame_no IS NULL",
        evidence={
            "observed": "'open at the end of the connection'",
            "expected": "'channel.close'",
            "channel": "channel",
            "open_channels": "open_channels",
        },
        frame="coalesce(c.close.frame_no, last_frame)",
        at_ns="until_ns",
    ),
    Detector(
        "CH-08",
        "events",
        when=f"name = 'channel.close' AND {hard_errors('args.reply_code')}",
        evidence={"observed": "args.reply_code", "expected": "'a code of a channel error'", **BLAME},
        offender="sender",
    ),
    Detector(
        "CH-09",
        "events",
        when="name = 'channel.close' AND args.reply_code >= 300",
        evidence={"observed": "args.reply_code", **BLAME, "closed_by": "sender"},
    ),
    Detector(
        "CH-10",
        "incarnations",
        when="(channel_life > 0 OR c.from_start) AND close.class_id > 0 AND "
        "NOT exists(methods, m -> m.sender != close.sender AND m.class_id = close.class_id AND "
        "close.method_id IN (0, m.method_id))",
        evidence={
            "observed": "named_struct('class', close.class_id, 'method', close.method_id)",
            "expected": "'a method that the other side has sent on the channel'",
            "code": "close.reply_code",
            "text": "close.reply_text",
        },
        row="close",
        offender="close.sender",
    ),
    Detector(
        "CH-11",
        "rates",
        when="name = 'channel.open' AND ts_ns - opened_before_ns <= 60000000000",
        evidence={
            "observed": "{limit_per_minute} + 1",
            "expected": "{limit_per_minute}",
            "in_seconds": "(ts_ns - opened_before_ns) / 1000000000D",
        },
    ),
    Detector(
        "CH-12",
        "events",
        when=f"name IN ('channel.close', 'basic.return') AND NOT {reply_codes('args.reply_code')}",
        evidence={"observed": "args.reply_code", "text": "args.reply_text", "method": "name", "version": "version"},
        offender="sender",
    ),
    *(
        Detector(
            "CH-12",
            "connections",
            when=f"c.{side}_close.frame_no IS NOT NULL AND NOT {reply_codes(f'c.{side}_close.args.reply_code')}",
            evidence={
                "observed": f"c.{side}_close.args.reply_code",
                "text": f"c.{side}_close.args.reply_text",
                "method": "'connection.close'",
                "version": "version",
            },
            row=f"c.{side}_close",
            offender=f"'{side}'",
        )
        for side in ("client", "server")
    ),
)
