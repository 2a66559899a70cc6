"""Layers between TCP and AMQP: TLS and WebSocket.

A layer reads the bytes and holes of both directions in order, and outputs bytes and holes. A byte of the output has the
packet that completed it: of TLS the last packet of its record. In which order to read it:

    stack        finds the connections with layers among all segments; openings: how such connections begin
    connection   one connection: its TCP in order, through its layers, as segments of the output, so that the decoder of
                 AMQP reads a decrypted connection as if it had been captured in clear; short: many short ones at once
    chunks       what a layer reads and writes
    tls_*        tls_records, then tls_handshake, tls_ciphers, tls_recovery (after a hole, or from the middle)
    websocket    the upgrade of HTTP/1.1 (http) and the frames after it
"""
