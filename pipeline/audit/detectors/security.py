"""SEC: what an attacker, or an auditor, would look at.

TLS: what is agreed on before AMQP begins, and certificates.
"""

from __future__ import annotations

from pipeline.audit.contexts.peers import refusals
from pipeline.audit.detector import Detector
from pipeline.audit.detectors.negotiation import NO_HEADER, OPENING

LOGIN = "coalesce(c.start_ok.frame_no, c.sasl_init.frame_no)"
LOGIN_AT = "coalesce(c.start_ok.ts_ns, c.sasl_init.ts_ns)"
NOTES = "coalesce(c.secure_ok.notes, c.start_ok.notes, c.sasl_init.notes)"
IN_CLEAR = "tls.mode = 'none'"
OFFERED = "coalesce(c.start.mechanisms, c.sasl_mechanisms.mechanisms)"
WEAK = "mechanism RLIKE '(?i)^(PLAIN|ANONYMOUS|CRAM-MD5|RABBIT-CR-DEMO)$'"
STRONGER = f"filter({OFFERED}, m -> m LIKE 'SCRAM-%' OR m IN ('EXTERNAL', 'GSSAPI'))"
LOOPBACK = r"({0} LIKE '127.%' OR {0} = '::1')"
PRIVATE = (
    r"({0} RLIKE '^(10\\.|127\\.|169\\.254\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)' "
    r"OR {0} RLIKE '^(::1$|f[cd]|fe[89ab])')"
)
INTERNAL = "('amq.rabbitmq.trace', 'amq.rabbitmq.log', 'amq.rabbitmq.event')"

NOT_AFTER = "tls.server_certificate.not_after"
OLD_TLS = "('SSL 3.0', 'TLS 1.0', 'TLS 1.1')"
WEAK_SUITE = "tls.cipher_suite RLIKE '_NULL_|_RC4_|_DES_|_3DES_|_MD5|EXPORT|_anon_|^TLS_RSA_WITH_'"

CONTEXTS = {"refusals": refusals}

DETECTORS = (
    Detector(
        "SEC-01",
        "connections",
        when=f"mechanism IN ('PLAIN', 'AMQPLAIN') AND {IN_CLEAR}",
        frame=LOGIN,
        at_ns=LOGIN_AT,
        evidence={"mechanism": "mechanism", "user": "user"},
    ),
    Detector(
        "SEC-02",
        "connections",
        when="user = 'guest'",
        frame=LOGIN,
        at_ns=LOGIN_AT,
        evidence={"user": "user", "loopback": LOOPBACK.format("client_ip")},
    ),
    Detector(
        "SEC-03",
        "connections",
        when="version IN ('0-8', '0-9', '0-10')",
        at_ns="opened_ns",
        evidence={"observed": "version"},
        severity="CASE WHEN version IN ('0-8', '0-9') THEN 'warning' END",
    ),
    Detector(
        "SEC-04",
        "connections",
        when="mechanism = 'ANONYMOUS'",
        frame=LOGIN,
        at_ns=LOGIN_AT,
        evidence={"mechanism": "mechanism"},
    ),
    Detector(
        "SEC-04",
        "connections",
        when=f"version = '1.0' AND start AND {IN_CLEAR} AND c.sasl_init IS NULL AND c.client_open IS NOT NULL "
        "AND (loss_from_ns > c.client_open.ts_ns OR loss_from_ns IS NULL)",
        row="c.client_open",
        evidence={"observed": "'no SASL'"},
    ),
    Detector(
        "SEC-05",
        "connections",
        when=f"{WEAK} AND size({STRONGER}) > 0",
        frame=LOGIN,
        at_ns=LOGIN_AT,
        evidence={"observed": "mechanism", "offered": STRONGER},
    ),
    Detector(
        "SEC-06",
        "peers",
        when="failed_login AND failures = {limit} + 1",
        evidence={"failures": "all_failures", "limit": "{limit}", "client_ip": "client_ip", "user": "user"},
    ),
    Detector(
        "SEC-07",
        "connections",
        when="server_product IS NOT NULL AND server_version IS NOT NULL",
        frame="coalesce(c.start.frame_no, c.server_open.frame_no)",
        at_ns="coalesce(c.start.ts_ns, c.server_open.ts_ns)",
        evidence={"product": "server_product", "version": "server_version"},
    ),
    Detector(
        "SEC-08",
        "connections",
        when=f"content = 'amqp' AND {IN_CLEAR} AND messages_published + messages_delivered > 0 AND "
        f"NOT {LOOPBACK.format('client_ip')} AND NOT {LOOPBACK.format('server_ip')}",
        at_ns="opened_ns",
        evidence={"published": "messages_published", "delivered": "messages_delivered"},
    ),
    Detector(
        "SEC-09",
        "connections",
        when="vhost = '/'",
        row="c.open",
        evidence={"vhost": "vhost"},
    ),
    Detector(
        "SEC-10",
        "events",
        when=f"name = 'queue.bind' AND args.exchange IN {INTERNAL} OR name = 'exchange.bind' AND "
        f"(args.source IN {INTERNAL} OR args.destination IN {INTERNAL})",
        evidence={
            "method": "name",
            "exchange": "coalesce(args.exchange, args.source)",
            "queue": "coalesce(args.queue, args.destination)",
            "routing_key": "args.routing_key",
        },
    ),
    Detector(
        "SEC-11",
        "connections",
        when=f"mechanism IN ('PLAIN', 'AMQPLAIN') AND (user = '' OR array_contains({NOTES}, 'empty-password'))",
        frame=LOGIN,
        at_ns=LOGIN_AT,
        evidence={
            "user": "user",
            "mechanism": "mechanism",
            "empty": "CASE WHEN user = '' THEN 'user' ELSE 'password' END",
        },
    ),
    Detector(
        "SEC-12",
        "peers",
        when=f"{NO_HEADER} AND server_port IN (5671, 5672) AND (content = 'foreign' OR c.server_header IS NOT NULL)",
        frame="coalesce(client_min_frame, first_frame)",
        evidence={**OPENING, "server_port": "server_port"},
    ),
    Detector(
        "SEC-13",
        "peers",
        when="content = 'amqp' AND recent = {limit_per_minute} + 1",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"limit_per_minute": "{limit_per_minute}", "client_ip": "client_ip", "server_ip": "server_ip"},
    ),
    Detector(
        "SEC-14",
        "connections",
        when=f"{IN_CLEAR} AND (c.update_secret IS NOT NULL OR array_contains({NOTES}, 'token-password'))",
        frame=f"coalesce(c.update_secret.frame_no, {LOGIN})",
        at_ns=f"coalesce(c.update_secret.ts_ns, {LOGIN_AT})",
        evidence={
            "method": "CASE WHEN c.update_secret IS NULL THEN 'connection.start-ok' ELSE 'connection.update-secret' END"
        },
    ),
    Detector(
        "SEC-15",
        "peers",
        when="new_host AND hosts = {limit} + 1",
        frame=LOGIN,
        at_ns="opened_ns",
        evidence={"user": "user", "hosts": "all_hosts", "limit": "{limit}"},
    ),
    Detector(
        "SEC-16",
        "connections",
        when=f"content = 'amqp' AND NOT ({PRIVATE.format('client_ip')} AND {PRIVATE.format('server_ip')})",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"client_ip": "client_ip", "server_ip": "server_ip"},
    ),
    Detector(
        "SEC-17",
        "peers",
        when=f"{IN_CLEAR} AND offers_tls AND shiftright(c.client_header.code, 24) IN (0, 3)",
        row="c.client_header",
        evidence={"observed": "hex(c.client_header.code)", "server_ip": "server_ip"},
    ),
    Detector(
        "SEC-18",
        "refusals",
        when="refusals = {limit} + 1",
        evidence={"user": "user", "refusals": "all_refusals", "limit": "{limit}", "method": "name"},
    ),
    Detector(
        "TLS-01",
        "connections",
        when=f"tls.tls_version IN {OLD_TLS}",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"observed": "tls.tls_version", "sni": "tls.sni"},
    ),
    Detector(
        "TLS-02",
        "connections",
        when=WEAK_SUITE,
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"observed": "tls.cipher_suite", "sni": "tls.sni"},
    ),
    Detector(
        "TLS-03",
        "connections",
        when=f"{NOT_AFTER} < opened_ts",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"observed": f"date_format({NOT_AFTER}, 'yyyy-MM-dd')", "subject": "tls.server_certificate.subject"},
    ),
    Detector(
        "TLS-04",
        "connections",
        when=f"{NOT_AFTER} >= opened_ts AND {NOT_AFTER} < opened_ts + make_dt_interval({{days}})",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={
            "observed": f"date_format({NOT_AFTER}, 'yyyy-MM-dd')",
            "subject": "tls.server_certificate.subject",
            "limit": "{days}",
        },
    ),
    Detector(
        "TLS-05",
        "connections",
        when="tls.tls_version IS NOT NULL AND tls.sni IS NULL AND NOT array_contains(limits, 'hello size')",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"observed": "tls.tls_version", "server_ip": "server_ip"},
    ),
)
