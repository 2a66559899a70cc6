"""What rows show of fields with a secret, and of fields next to one; the fact tables' overlay lists the fields.

A damaged length moves octets of a secret into the fields next to it. So the name of a mechanism is shown only if it has
the form of one. A short string after a secret is shown only if its length is no octet that a secret consists of, and
none of its octets could be such a length.
"""

from __future__ import annotations

from codec.amqp.versions import overlay
from codec.compiler.kernel import kernel
from codec.cursor import octet

# Of a field: all of it; the user name in it; its size; nothing; all of it, if it has the form of SASL mechanism names;
# all of it, if it is a short string that cannot be part of the secret before it.
SHOW_ALL, SHOW_USER, SHOW_SIZE, HIDE, SHOW_SASL_NAMES, SHOW_SHORT_TEXT = range(6)
SECRETS = (SHOW_USER, SHOW_SIZE, HIDE)

MECHANISM_OCTETS = 20  # of the longest name (RFC 4422, section 3.1)
FIRST_PRINTABLE = 0x20


def disclosure(entry: str, field: str) -> tuple[str, int]:
    """Key in a row, and what the row shows, of `field` of a method, control, command or performative."""
    facts = overlay()
    key, secret = field.replace("-", "_"), facts["credentials"].get(entry, {}).get(field)
    if field in facts["sasl_names"].get(entry, ()):
        return key, SHOW_SASL_NAMES
    if secret is None:
        return key, SHOW_ALL
    if "size_as" in secret:
        return secret["size_as"], SHOW_SIZE
    return ("user", SHOW_USER) if "user_from" in secret else (key, HIDE)


def describes_peer(entry: str, field: str) -> bool:
    """Whether a peer describes itself in `field`: userinfo of URIs is masked there."""
    return field in overlay()["tells_of_peer"].get(entry, ())


@kernel
def is_sasl_name(buf, start, end):
    """Whether `buf[start:end]` has the form of a SASL mechanism name: 1 to 20 upper-case letters, digits, hyphens,
    underscores (RFC 4422, section 3.1)."""
    if end <= start or end - start > MECHANISM_OCTETS:
        return False
    for i in range(start, end):
        byte = octet(buf, i)
        is_letter = ord("A") <= byte <= ord("Z")
        if not (is_letter or ord("0") <= byte <= ord("9") or byte == ord("-") or byte == ord("_")):
            return False
    return True


@kernel
def is_not_secret(buf, start, end):
    """Whether the short string `buf[start:end]` cannot be part of a secret before it: its length is not printable, and
    none of its octets could be such a length."""
    for i in range(start, end):
        if octet(buf, i) < FIRST_PRINTABLE:
            return False
    return end - start < FIRST_PRINTABLE
