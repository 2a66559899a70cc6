"""What may lie between TCP and AMQP: TLS and WebSocket.

A layer takes the bytes and holes of both directions in order, and gives bytes and holes. `ordered` makes them of TCP
segments; `stack` puts the layers of a connection on top of each other and makes segments of what they give, so that
the decoder of AMQP reads a decrypted connection as if it had been captured in clear. A byte that a layer gives has the
packet that completed it: of TLS the last one of its record.
"""
