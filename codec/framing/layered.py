"""What the decoder counts of a connection whose bytes come out of layers (TLS, WebSocket).

The decoder reads segments that layers have made of their output: they are more or fewer than the packets, and have
other bytes. So they are marked (IN_LAYERS), the decoder does not look for another connection among them, and after the
last one comes a summary: a segment with the flag ENDS_LAYERS, whose payload says what layers have counted on the wire.
It changes the counters of the connection that is being decoded, whichever packet that began with. In the payload are
64-bit integers (network order): the number of the layers' facts (`codec.layers.stack.Layers.facts`), then SUMMARY of
each direction.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import i64
from codec.net.layers import ENDS_LAYERS

# Fields of a direction: what is added to those of the decoder.
ADDED = (
    "packets", "payload_bytes", "retransmitted_bytes", "out_of_order", "conflicting_bytes", "outside_bytes",
    "zero_window_ns", "tls_bytes", "websocket_bytes", "decrypted_bytes",
)  # fmt: skip
SUMMARY = (*ADDED, "max_silence_ns", "limits")  # of the last ones the larger one, and the bits of both
SUMMARY_BYTES = 8 * (1 + 2 * len(SUMMARY))


def summary(numbers: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Payloads of summaries, uint8, end to end. `numbers` int64 (n,): of facts; `counted` int64 (n, 2, SUMMARY)."""
    words = np.concatenate([numbers[:, None], counted.reshape(len(numbers), -1)], axis=1)
    return np.frombuffer(bytearray(words.astype(">i8").tobytes()), np.uint8)


@kernel
def begin_layers(c):
    """A segment of layers has come: those of a connection may follow protocol headers of AMQP."""
    if not c.in_layers:
        c.in_layers = 1
        if c.layers == 0:
            c.upgraded = 1 if c.offers > 0 else 0


@kernel
def end_layers(c, directions, g, payload):
    """The layers of the current connection have ended; `g` is their summary."""
    at = int(g.payload_at)
    end = at + SUMMARY_BYTES
    c.in_layers = 0
    c.layers = i64(payload, at, end)
    for side in range(2):
        d = directions[side]
        at += 8
        d.packets += i64(payload, at, end)
        at += 8
        d.payload_bytes += i64(payload, at, end)
        at += 8
        d.retransmitted_bytes += i64(payload, at, end)
        at += 8
        d.out_of_order += i64(payload, at, end)
        at += 8
        d.conflicting_bytes += i64(payload, at, end)
        at += 8
        d.outside_bytes += i64(payload, at, end)
        at += 8
        d.zero_window_ns += i64(payload, at, end)
        at += 8
        d.tls_bytes += i64(payload, at, end)
        at += 8
        d.websocket_bytes += i64(payload, at, end)
        at += 8
        d.decrypted_bytes += i64(payload, at, end)
        at += 8
        d.max_silence_ns = max(int(d.max_silence_ns), i64(payload, at, end))
        at += 8
        d.limits |= i64(payload, at, end)


@kernel
def is_summary(g):
    """Whether this segment is a summary."""
    return g["flags"] & ENDS_LAYERS != 0
