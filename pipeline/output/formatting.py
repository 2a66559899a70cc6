"""Values as text and as HTML. Strings from the wire are hostile: they are escaped, isolated and truncated; invisible
characters are made visible.

A name may contain markup, control characters, or marks that change the direction of the surrounding text. `wire` wraps
it in `<bdi>`, and writes every invisible character as its code point. Its result has at most `MARKUP_BYTES`, so that
the number of cells bounds the size of a page.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from markupsafe import Markup, escape

# Latencies of `pipeline.explore.summaries.latency`, in the order in which a message meets them.
MEASURE_NAMES = {
    "confirm": "publish to confirm",
    "broker": "publish to delivery",
    "ack": "delivery to its settlement",
    "total": "publish to settlement",
    "rpc": "request to reply",
}
# Parts of the total, in the order in which a message meets them: the columns of message_flows that add up to it.
PART_NAMES = {
    "send": "publish on the wire",
    "network": "held up by TCP",
    "confirm_wait": "until confirmed",
    "queue_blocked": "no consumer could take it",
    "queue_ready": "in the queue otherwise",
    "redelivery": "until redelivered",
    "delivery": "delivery on the wire",
    "consumer": "at the consumer",
    "ack_held": "handled, until it was settled with others",
}
KILO = 1024
# Shown for null.
NOTHING = "\u2013"
# Names on the wire have at most 255 bytes, evidence may be longer.
MAX_CHARACTERS = 160
# An invisible character counts as so many, because it is written as its code point.
CODE_POINT_WEIGHT = 8
# Control, format (direction marks, zero width), surrogate, private use, not assigned, line and paragraph separators.
INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# More of these on one letter would overlap the lines above and below.
COMBINING, STACKED = {"Mn", "Me"}, 2
RIGHT_TO_LEFT = {"R", "AL", "AN"}
ISOLATE, END_ISOLATE = "\u2068", "\u2069"
BDI = Markup("<bdi>{}</bdi>")
# Characters that may end a <script>, begin markup, or end a line of JavaScript. In JSON they occur only within strings,
# where they can be escaped.
ENDS_SCRIPT = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})
# The longest escape of one character, and the markup around the string.
MARKUP_BYTES = MAX_CHARACTERS * len("&#34;") + 100


def wire(value: object, limit: int = MAX_CHARACTERS) -> Markup:
    """A string from the wire as inert HTML; a dash for null, 'empty' for the empty string."""
    if value is None:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    text = str(value)
    if text == "":
        return Markup('<span class="none">empty</span>')
    return BDI.format(text) if text.isascii() and text.isprintable() and len(text) <= limit else _inert(text, limit)


@lru_cache(1 << 10)  # a page shows most names many times
def _inert(text: str, limit: int) -> Markup:
    """A string with characters that have to be escaped, or of more than `limit`, as inert HTML."""
    length, parts = 0, list[str]()
    for odd, group in groupby(visible_characters(text, limit), key=itemgetter(1)):
        characters = "".join(character for character, _ in group)
        length += len(characters)
        parts += (f"<i>U+{ord(c):04X}</i>" for c in characters) if odd else (str(escape(characters)),)
    if length < len(text):
        parts.append(f"<i>\u2026 {len(text) - length} more</i>")
    return BDI.format(Markup("".join(parts)))


def code_span(text: str) -> str:
    """A text as a code span in a table of GitHub's Markdown, where it is neither markup, nor a link, nor a mention."""
    inert = text.replace("`", "'").replace("\\", "/").replace("|", "\\|")
    return f"`{inert}`" if inert else ""


def plain_text(value: object, limit: int) -> str:
    """The same as plain text: code points in brackets, an ellipsis at the end of a truncated string.

    At most `limit` characters. Right-to-left text is isolated from the surrounding text.
    """
    text = NOTHING if value is None else str(value) or "''"
    parts = [f"[U+{ord(character):04X}]" if odd else character for character, odd in visible_characters(text, limit)]
    if len(parts) < len(text) or sum(map(len, parts)) > limit:
        while parts and sum(map(len, parts)) >= limit:
            parts.pop()
        parts.append("\u2026")
    turned = any(unicodedata.bidirectional(character) in RIGHT_TO_LEFT for character in text[: len(parts)])
    return f"{ISOLATE}{''.join(parts)}{END_ISOLATE}" if turned else "".join(parts)


def script_safe(json: str) -> str:
    """Equivalent JSON that can be embedded in a <script>."""
    return json.translate(ENDS_SCRIPT)


def visible_characters(text: str, limit: int) -> Iterator[tuple[str, bool]]:
    """The characters up to `limit`; for each, whether it is invisible and is written as its code point."""
    weight = stacked = 0
    for character in text:
        category = unicodedata.category(character)
        stacked = stacked + 1 if category in COMBINING else 0
        odd = category in INVISIBLE or stacked > STACKED
        weight += CODE_POINT_WEIGHT if odd else 1
        if weight > limit:
            return
        yield character, odd


def count(number: int | None) -> str:
    """A number with thousands separators."""
    return NOTHING if number is None else f"{number:,}"


def share(part: int, whole: int) -> str:
    """A share in per cent: 100 % only for all, 0 % only for nothing."""
    if whole <= 0:
        return NOTHING
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    return f"{min(max(100 * part / whole, 0.01), 99.99):.2f}".rstrip("0").rstrip(".") + " %"


def moment(micros: int | None) -> str:
    """A time, given in microseconds since 1970 UTC, to the second."""
    if micros is None:
        return NOTHING
    try:
        return f"{datetime.fromtimestamp(micros // 10**6, tz=UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, OSError, ValueError):  # beyond the year 9999
        return f"{micros // 10**6} s"


def size(data: int) -> str:
    """A size with a suitable unit: 812 B, 14.2 KB, 1.1 GB."""
    amount = float(data)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < KILO:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= KILO
    return f"{amount:.1f} TB"


def duration(nanoseconds: int | None) -> str | None:
    """A duration with a suitable unit: 812 ns, 14.2 us, 1.1 s, 49.9 min; negative if a clock was set back."""
    if nanoseconds is None:
        return None
    amount = float(nanoseconds)
    for unit in ("ns", "us", "ms"):
        if abs(amount) < 1000:
            return f"{amount:.0f} ns" if unit == "ns" else f"{amount:.1f} {unit}"
        amount /= 1000
    for unit, factor, below in (("s", 60, 1000), ("min", 60, 120), ("h", 24, 48)):
        if abs(amount) < below:
            return f"{amount:.1f} {unit}"
        amount /= factor
    return f"{amount:.1f} days"


def time_unit(span_ns: int) -> tuple[str, int]:
    """The unit for the axis of a time span, and its length in ns."""
    for unit, length in (("hours", 3600 * 10**9), ("minutes", 60 * 10**9), ("seconds", 10**9)):
        if span_ns >= 3 * length:
            return unit, length
    return "milliseconds", 10**6


def plural(number: int, noun: str) -> str:
    """1 capture, 2,000 captures."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def endpoint_text(ip: str, port: int) -> str:
    """10.0.0.7:5672, [2001:db8::7]:5672."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
