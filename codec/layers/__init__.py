"""Layers between TCP and AMQP: TLS and WebSocket.

A layer reads the bytes and holes of both directions in order, and outputs bytes and holes. `ordered` makes its input of
TCP segments. `stack` finds the connections with layers, and `connection` makes segments of the output, so that the
decoder of AMQP reads a decrypted connection as if it had been captured in clear. A byte of the output has the packet
that completed it: of TLS the last packet of its record.
"""
