"""Bytes to columns: captures, TCP segments and AMQP frames, without Spark, files or a clock.

`codec.capture` reads packet records, `codec.net` finds TCP segments, `codec.tcp` reassembles them, `codec.layers`
removes TLS and WebSocket, `codec.amqp` decodes the five versions of the protocol, `codec.conversation` follows channels
and messages. Functions take and return numpy arrays. Wire bytes never raise.

Kernels take records and arrays under short names: `c` a CONNECTION, `d` and `peer` the DIRECTION of both directions,
`s` a Stream, `g` a SEGMENT, `w` a VARIANT Writer, `t` the tables of a version, `v` those for writing values, `a` the
assemblies of 0-10, `dl` the deliveries of 1.0.
"""
