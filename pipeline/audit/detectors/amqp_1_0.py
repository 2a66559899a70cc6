"""L10: frames, sessions, links, deliveries and transactions of AMQP 1.0."""

from __future__ import annotations

from codec.amqp.versions import (
    E_DEPTH,
    E_FIELDS,
    E_FRAME_TYPE,
    E_NO_PERFORMATIVE,
    E_SECTIONS,
    E_SHORT_FRAME,
    ERRORS,
)
from pipeline.audit.contexts.sequences import handed_back, sequences, session_messages, stolen_links
from pipeline.audit.detector import Detector, Sql
from pipeline.audit.detectors.framing import has_note
from pipeline.audit.engine import sql_text

CONTEXTS = {
    "handed_back": handed_back,
    "session_messages": session_messages,
    "sequences": sequences,
    "stolen_links": stolen_links,
}
OPENED: Sql = "c.client_open IS NOT NULL AND c.server_open IS NOT NULL"
SASL_NAMED: Sql = "name LIKE 'sasl-%'"
MISPLACED: Sql = f"(frame_type = 'amqp' AND {SASL_NAMED} OR frame_type = 'sasl' AND NOT {SASL_NAMED})"
ON_LINK = {"link": "link", "address": "address"}
# A bit of `udfs.conversation.checks.OUTCOMES` by its name.
OUTCOME: Sql = "CASE {} WHEN 1 THEN 'accepted' WHEN 2 THEN 'rejected' WHEN 4 THEN 'released' WHEN 8 THEN 'modified' END"


def error_is(*codes: int) -> Sql:
    """True on frames with one of these errors."""
    return f"coalesce(error IN ({', '.join(sql_text(str(ERRORS[code])) for code in codes)}), false)"


def odd(rule: str, oddity: str, offender: Sql = "sender", **evidence: Sql) -> Detector:
    """An oddity in the sequence of frames breaks the rule; `evidence` besides the numbers that show it."""
    shown = {"observed": "observed", "expected": "expected", **evidence}
    return Detector(rule, "sequences", when=f"oddity = '{oddity}'", evidence=shown, offender=offender)


def late(rule: str, oddity: str, expected: str, **evidence: Sql) -> Detector:
    """An answer that came late, or not at all, breaks the rule."""
    return Detector(
        rule,
        "sequences",
        when=f"oddity = '{oddity}' AND waited_ns > {{limit_seconds}} * 1000000000D",
        evidence={
            "asked": "name",
            "expected": f"concat('{expected} within ', {{limit_seconds}}, ' s')",
            "waited_s": "waited_ns / 1000000000D",
            **evidence,
        },
        offender="sender",
    )


def peer_error(rule: str, oddity: str, **evidence: Sql) -> Detector:
    """An error that a peer states on the wire is the finding."""
    shown = {"observed": "condition", "text": "description", "by": "sender", **evidence}
    return Detector(rule, "sequences", when=f"oddity = '{oddity}'", evidence=shown)


def frame_error(rule: str, when: Sql, **evidence: Sql) -> Detector:
    """A frame of 1.0 breaks the rule."""
    shown = {"name": "name", "frame_type": "frame_type", **evidence, "error": "error", "size": "size"}
    return Detector(rule, "frames", when=f"({when})", evidence=shown, offender="sender")


DETECTORS = (
    frame_error("L10-01", f"{error_is(E_SHORT_FRAME)} OR {has_note('frame-short')}"),
    frame_error(
        "L10-02", f"{error_is(E_FRAME_TYPE)} OR {error_is(E_NO_PERFORMATIVE)} AND coalesce({MISPLACED}, false)"
    ),
    odd("L10-03", "frame-too-large", name="name"),
    *(
        Detector(
            "L10-04",
            "connections",
            when=f"{side}_frame_max < 512",
            row=f"c.{side}_open",
            evidence={"observed": f"{side}_frame_max", "expected": "512"},
            offender=f"'{side}'",
        )
        for side in ("client", "server")
    ),
    odd("L10-05", "open-misplaced", name="name"),
    odd("L10-06", "open-channel"),
    frame_error(
        "L10-07",
        f"({error_is(E_NO_PERFORMATIVE)} AND NOT coalesce({MISPLACED}, false) OR "
        f"{error_is(E_FIELDS, E_DEPTH)} AND NOT {has_note('fields-missing', 'fields-extra', 'octets-left')}) "
        "AND frame_type IN ('amqp', 'sasl')",
    ),
    frame_error("L10-08", has_note("fields-missing"), expected="'every mandatory field'"),
    frame_error(
        "L10-09",
        "frame_type = 'empty' AND (frame_no < CASE sender WHEN 'client' THEN c.client_open.frame_no ELSE "
        "c.server_open.frame_no END OR frame_no > CASE sender WHEN 'client' THEN c.client_end.frame_no ELSE "
        "c.server_end.frame_no END)",
        channel="channel",
    ),
    frame_error("L10-10", has_note("fields-extra"), expected="'fields of the type, and values that it allows'"),
    frame_error("L10-11", has_note("octets-left"), observed="'octets behind the performative'"),
    odd("L10-20", "sasl-order", name="name"),
    Detector(
        "L10-21",
        "connections",
        when="c.sasl_init IS NOT NULL AND NOT array_contains(c.sasl_mechanisms.mechanisms, mechanism)",
        row="c.sasl_init",
        evidence={"observed": "mechanism", "expected": "c.sasl_mechanisms.mechanisms"},
    ),
    Detector(
        "L10-22",
        "control",
        when="frame_type = 'protocol-header' AND shiftright(code, 24) = 0 AND c.sasl_outcome.args.code != 0 AND "
        "frame_no > c.sasl_outcome.frame_no",
        evidence={"observed": "hex(code)", "outcome": "c.sasl_outcome.args.code"},
        offender="sender",
    ),
    Detector(
        "L10-23",
        "connections",
        when="c.sasl_outcome.args.code != 0",
        row="c.sasl_outcome",
        evidence={
            "observed": "c.sasl_outcome.args.code",
            "meaning": "CASE c.sasl_outcome.args.code WHEN 1 THEN 'auth' WHEN 2 THEN 'sys' WHEN 3 THEN 'sys-perm' "
            "WHEN 4 THEN 'sys-temp' END",
            "by": "'server'",
            "user": "user",
            "mechanism": "mechanism",
        },
    ),
    Detector(
        "L10-24",
        "connections",
        when="shiftright(c.client_header.code, 24) = 0 AND shiftright(c.server_header.code, 24) IN (2, 3) AND "
        "c.server_open IS NULL",
        row="c.server_header",
        evidence={
            "observed": "hex(c.client_header.code)",
            "expected": "CASE shiftright(c.server_header.code, 24) WHEN 2 THEN 'TLS' ELSE 'SASL' END",
        },
    ),
    Detector(
        "L10-25",
        "connections",
        when="c.sasl_init.args.hostname != c.client_open.args.hostname",
        row="c.client_open",
        evidence={"sasl_init": "c.sasl_init.args.hostname", "open": "c.client_open.args.hostname"},
    ),
    odd("L10-30", "no-session", name="name"),
    odd("L10-31", "channel-above-max"),
    odd("L10-32", "begin-twice"),
    odd("L10-33", "remote-channel"),
    late("L10-34", "begin-unanswered", "begin"),
    odd("L10-35", "window-exceeded"),
    odd("L10-36", "next-incoming-id"),
    odd("L10-37", "next-outgoing-id"),
    odd("L10-38", "after-end", name="name"),
    late("L10-39", "end-unanswered", "end"),
    peer_error("L10-40", "end-error"),
    late("L10-41", "echo-unanswered", "flow"),
    odd("L10-42", "delivery-id-order", **ON_LINK),
    odd("L10-50", "handle-in-use", **ON_LINK),
    odd("L10-51", "handle-above-max", **ON_LINK),
    odd("L10-52", "handle-unattached", name="name"),
    odd("L10-53", "attach-role", **ON_LINK),
    odd("L10-54", "no-initial-count", **ON_LINK),
    late("L10-55", "refused-not-detached", "detach with closed = true", **ON_LINK),
    Detector(
        "L10-55",
        "sequences",
        when="oddity = 'refused-not-detached' AND waited_ns IS NULL",
        evidence={"observed": "'closed = false'", "expected": "'closed = true'", **ON_LINK},
        offender="sender",
    ),
    odd("L10-56", "transfer-by-receiver", **ON_LINK),
    odd("L10-57", "no-credit", **ON_LINK),
    odd("L10-58", "flow-without-handle"),
    late("L10-59", "drain-unanswered", "transfers, or a flow that uses the credit up,", **ON_LINK),
    odd("L10-60", "after-detach", name="name", **ON_LINK),
    late("L10-61", "detach-unanswered", "detach", **ON_LINK),
    Detector(
        "L10-61",
        "sequences",
        when="oddity = 'detach-not-closed'",
        evidence={"observed": "'closed = false'", "expected": "'closed = true'", **ON_LINK},
        offender="sender",
    ),
    peer_error("L10-62", "detach-error", **ON_LINK),
    Detector(
        "L10-63",
        "stolen_links",
        when="true",
        thing="frame_no",
        evidence={
            "link": "name",
            "container": "client_container_id",
            "peer": "server_container_id",
            "other_connection": "earlier.of",
        },
    ),
    odd("L10-64", "dynamic-address", **ON_LINK),
    odd("L10-65", "settle-mode", **ON_LINK),
    odd("L10-66", "receiver-mode", **ON_LINK),
    odd("L10-70", "first-incomplete", **ON_LINK),
    odd("L10-71", "tag-too-long", **ON_LINK),
    odd("L10-72", "tag-in-use", **ON_LINK),
    odd("L10-73", "continuation-differs", **ON_LINK),
    odd("L10-74", "deliveries-mixed"),
    odd("L10-75", "delivery-unfinished", **ON_LINK),
    odd("L10-76", "aborted", **ON_LINK),
    odd("L10-77", "message-too-large", **ON_LINK),
    frame_error("L10-78", error_is(E_SECTIONS)),
    odd("L10-79", "resume-unknown"),
    odd("L10-80", "disposition-unknown"),
    odd("L10-81", "disposition-reversed"),
    odd("L10-82", "settled-without-outcome"),
    Detector(
        "L10-83",
        "sequences",
        when="oddity = 'outcome-not-agreed'",
        evidence={"observed": OUTCOME.format("observed"), "error": "condition"},
        offender="sender",
    ),
    late("L10-84", "never-settled", "disposition with settled = true", **ON_LINK),
    Detector(
        "L10-85",
        "session_messages",
        when="priority > 9 OR ttl_ms = 0 AND operation = 'deliver'",
        evidence={"priority": "priority", "ttl_ms": "ttl_ms", "address": "address"},
        offender="sender",
    ),
    Detector(
        "L10-86",
        "session_messages",
        when="delivery_count > {limit}",
        evidence={"observed": "delivery_count", "expected": "{limit}", "address": "address"},
    ),
    Detector(
        "L10-87",
        "handed_back",
        when="true",
        evidence={
            "observed": "outcome",
            "by": "CASE operation WHEN 'publish' THEN 'server' ELSE 'client' END",
            "condition": "error.condition",
            "text": "error.description",
            "messages": "messages",
            "link": "link",
            "address": "address",
        },
        occurrences="messages",
        thing="content_frame_no",
    ),
    odd("L10-90", "transaction-unknown", name="name"),
    odd("L10-91", "not-coordinated", **ON_LINK),
    odd("L10-92", "transaction-open", link="link"),
    Detector(
        "L10-95",
        "silences",
        when="silence_ns > idle_ms * 1000000",
        evidence={"observed_ms": "silence_ns DIV 1000000", "negotiated_ms": "idle_ms"},
        # Peers should announce half of what they wait for.
        severity="CASE WHEN silence_ns <= 2 * idle_ms * 1000000 THEN 'warning' END",
        offender="sender",
    ),
    *(
        Detector(
            "L10-96",
            "connections",
            when=f"{side}_max_frame > c.{side}_end.frame_no",
            frame=f"{side}_max_frame",
            evidence={"closed_in_frame": f"c.{side}_end.frame_no"},
            offender=f"'{side}'",
        )
        for side in ("client", "server")
    ),
    *(
        Detector(
            "L10-97",
            "connections",
            when=f"c.{side}_end IS NULL AND c.{other}_end IS NOT NULL AND tcp_end != 'none'",
            frame=f"c.{other}_end.frame_no",
            evidence={"tcp_end": "tcp_end", "ended_by": "tcp_end_by", "closed_by": f"'{other}'"},
            offender=f"'{side}'",
        )
        for side, other in (("client", "server"), ("server", "client"))
    ),
    Detector(
        "L10-98",
        "connections",
        when=f"{OPENED} AND coalesce(client_idle_timeout_ms, 0) = 0 AND coalesce(server_idle_timeout_ms, 0) = 0",
        row="c.server_open",
        evidence={"observed": "'no idle time-out'"},
    ),
    *(
        Detector(
            "L10-99",
            "connections",
            when=f"{side}_idle_timeout_ms BETWEEN 1 AND {{limit_ms}} - 1",
            row=f"c.{side}_open",
            evidence={"observed": f"{side}_idle_timeout_ms", "expected": "{limit_ms}"},
            offender=f"'{side}'",
        )
        for side in ("client", "server")
    ),
)
