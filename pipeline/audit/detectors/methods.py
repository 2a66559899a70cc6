"""MT: methods, who may send them, and which reply belongs to which request.

Access tickets of 0-8 and 0-9 (class access), which later versions do without: rules FR-14 and MT-10.
"""

from __future__ import annotations

from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from codec.amqp.versions import fact_table
from pipeline.audit.constants import NEVER
from pipeline.audit.contexts.request_reply import request_reply
from pipeline.audit.detector import Detector, Sql, State
from pipeline.audit.detectors.transactions import SEEN_SINCE_OPEN, since_open

STATES = {"ticket_frame": State("max(CASE WHEN name = 'access.request-ok' THEN frame_no END)")}

NO_TICKET: Sql = "args.ticket = 0 AND name NOT LIKE 'access.%'"
TICKET_GRANTED: Sql = since_open("ticket_frame")
# Brokers that do not look at tickets.
TICKETS_IGNORED: Sql = "lower(try_variant_get(c.server_properties, '$.product', 'string')) RLIKE 'rabbitmq|qpid'"

CONTEXTS = {"request_reply": request_reply}

# (side, capability that the other side must have listed) -> the methods that need it.
EXTENSIONS = {
    ("client", "basic.nack"): ("basic.nack",),
    ("client", "publisher_confirms"): ("confirm.select",),
    ("client", "exchange_exchange_bindings"): ("exchange.bind", "exchange.unbind"),
    ("server", "consumer_cancel_notify"): ("basic.cancel",),
    ("server", "connection.blocked"): ("connection.blocked",),
}
OTHER = {"client": "server", "server": "client"}


def names(found: object) -> Sql:
    """These names as SQL literals."""
    return ", ".join(f"'{name}'" for name in sorted(found))  # type: ignore[call-overload]


def wrong_side() -> Sql:
    """True on methods that their sender may not send in their version."""
    cases = [
        f"WHEN version = '{version}' AND sender = '{sender}' THEN "
        f"name IN ({names({m.name for m in methods(version) if m.sent_by == OTHER[sender]})})"
        for version in CLASSIC_VERSIONS
        for sender in OTHER
    ]
    return f"coalesce(CASE {' '.join(cases)} END, false)"


def work_in_progress() -> set[str]:
    """What the 0-9 document labels so."""
    return {
        f"{of_class['name']}.{method['name']}"
        for of_class in fact_table("0-9")["classes"]
        for method in of_class["methods"]
        if of_class.get("work_in_progress") or method.get("work_in_progress")
    }


def capability(sender: str, name: str) -> Detector:
    """Methods that `sender` may only send to a peer that lists capability `name`."""
    listed = f"try_variant_get(c.{OTHER[sender]}_properties, \"$.capabilities['{name}']\", 'boolean')"
    return Detector(
        "MT-07",
        "frames",
        when=f"name IN ({names(EXTENSIONS[sender, name])}) AND sender = '{sender}' AND "
        f"c.{OTHER[sender]}_properties IS NOT NULL AND NOT coalesce({listed}, false)",
        evidence={"observed": "name", "expected": f"'capability {name}'", "lacking_by": f"'{OTHER[sender]}'"},
        offender="sender",
    )


# Requests that the rules are about; closes of channels and connections have other rules.
OPEN_ENDED: Sql = "asks AND name NOT LIKE '%.close'"
ANSWERED_NS: Sql = "coalesce(reply_ns, least(next_close_ns, c.close.ts_ns), c.last_ns)"

DETECTORS = (
    Detector(
        "MT-01",
        "frames",
        when=f"frame_type IN ('method', 'oob-method') AND {wrong_side()}",
        evidence={"observed": "sender", "method": "name"},
        offender="sender",
    ),
    Detector(
        "MT-02",
        "request_reply",
        when="replies AND NOT coalesce(paired, false) AND NOT coalesce(overtaken, false) AND "
        "NOT (sender = 'server' AND coalesce(no_wait_before, false))",
        evidence={"observed": "name", "expected": "'a request before'"},
        offender="sender",
    ),
    Detector(
        "MT-03",
        "request_reply",
        when=f"{OPEN_ENDED} AND {ANSWERED_NS} - ts_ns > {{limit_seconds}} * 1000000000D",
        evidence={
            "observed": "CASE WHEN reply_ns IS NULL THEN 'no reply' ELSE 'late reply' END",
            "expected": "concat('a reply within ', {limit_seconds}, ' s')",
            "waited_s": f"({ANSWERED_NS} - ts_ns) / 1000000000D",
            "request": "name",
        },
        at_ns=ANSWERED_NS,
        offender="CASE sender WHEN 'client' THEN 'server' ELSE 'client' END",
    ),
    Detector(
        "MT-04",
        "request_reply",
        when=f"{OPEN_ENDED} AND open_until > frame_no",
        evidence={"observed": "name", "earlier_answered_in_frame": f"nullif(open_until, {NEVER})"},
        offender="sender",
    ),
    Detector(
        "MT-05",
        "request_reply",
        when="replies AND sender = 'server' AND NOT coalesce(paired, false) AND coalesce(no_wait_before, false)",
        evidence={"observed": "name", "expected": "'no reply: no-wait was set'"},
    ),
    Detector(
        "MT-06",
        "request_reply",
        when=f"{OPEN_ENDED} AND reply_ns IS NOT NULL AND open_until > reply_frame_no",
        evidence={
            "observed": "name",
            "expected": "'the reply to an earlier request first'",
            "earlier_answered_in_frame": f"nullif(open_until, {NEVER})",
        },
        frame="reply_frame_no",
        at_ns="reply_ns",
        offender="CASE sender WHEN 'client' THEN 'server' ELSE 'client' END",
    ),
    *(capability(sender, name) for sender, name in EXTENSIONS),
    Detector(
        "MT-08",
        "events",
        when="name = 'basic.recover-async' OR name = 'access.request' AND version = '0-9-1' OR "
        "name = 'basic.publish' AND args.immediate OR name = 'channel.flow' AND sender = 'client'",
        evidence={"observed": "name", "immediate": "args.immediate"},
        offender="sender",
    ),
    Detector(
        "MT-09",
        "events",
        when=f"name IN ({names(work_in_progress())})",
        evidence={"observed": "name"},
        offender="sender",
    ),
    Detector(
        "MT-10",
        "events",
        when=f"{NO_TICKET} AND NOT {TICKET_GRANTED} AND {SEEN_SINCE_OPEN}",
        evidence={"observed": "args.ticket", "expected": "'the ticket of access.request-ok'", "method": "name"},
        severity=f"CASE WHEN {TICKETS_IGNORED} THEN 'info' END",
    ),
)
