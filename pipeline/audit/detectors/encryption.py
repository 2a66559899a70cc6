"""TLS: what is agreed on before AMQP begins, and certificates."""

from __future__ import annotations

from pipeline.audit.detector import Detector

NOT_AFTER = "tls.server_certificate.not_after"
OLD = "('SSL 3.0', 'TLS 1.0', 'TLS 1.1')"
WEAK = "tls.cipher_suite RLIKE '_NULL_|_RC4_|_DES_|_3DES_|_MD5|EXPORT|_anon_|^TLS_RSA_WITH_'"

DETECTORS = (
    Detector(
        "TLS-01",
        "connections",
        when=f"tls.tls_version IN {OLD}",
        frame="first_frame",
        at_ns="opened_ns",
        evidence={"observed": "tls.tls_version", "sni": "tls.sni"},
    ),
    Detector(
        "TLS-02",
        "connections",
        when=WEAK,
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
