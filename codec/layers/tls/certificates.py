"""What the first certificate of a chain says of its owner."""

from __future__ import annotations

from cryptography import x509

from codec.layers.tls.reader import Reader
from codec.text import escaped


def first_certificate(message: bytes, tls13: bool) -> bytes:
    """The first certificate of a Certificate message (RFC 8446 section 4.4.2, RFC 5246 section 7.4.2)."""
    reader = Reader(message)
    if tls13:
        reader.vector(1)  # request context
    return Reader(reader.vector(3)).vector(3)


def certificate_facts(octets: bytes) -> dict[str, str | int] | None:
    """`subject`, `issuer` (RFC 4514 texts), `not_after_s` (seconds since 1970-01-01 UTC); None where it is none."""
    if not octets:
        return None
    try:
        found = x509.load_der_x509_certificate(octets)
        return {
            "subject": escaped(found.subject.rfc4514_string().encode()),
            "issuer": escaped(found.issuer.rfc4514_string().encode()),
            "not_after_s": int(found.not_valid_after_utc.timestamp()),
        }
    except Exception:  # whatever a certificate off the wire makes the parser raise: it is not known then
        return None
