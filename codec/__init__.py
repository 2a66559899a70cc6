"""Bytes to columns: captures, TCP segments and AMQP frames, without Spark, files or a clock.

`codec.capture` reads packet records, `codec.net` finds TCP segments, `codec.tcp` reassembles them, `codec.layers`
removes TLS and WebSocket, `codec.amqp` decodes the five versions of the protocol, `codec.conversation` follows channels
and messages. Functions take and return numpy arrays. Wire bytes never raise.
"""
