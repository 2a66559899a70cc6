"""Bytes to columns: captures, TCP segments and AMQP frames, without Spark, files or a clock.

In the order of the data:

    capture        the bytes of a capture file -> packet records
    net            packets -> TCP segments
    tcp            one direction of a connection: segments in any order -> bytes in order, and holes
    layers         TLS, WebSocket and the PROXY header around AMQP
    protocol       what the five versions say, as data; their values
    framing        the ordered bytes of a connection -> rows of frames
    amqp           the way in: segments of many connections, or some bytes -> batches of rows
    conversation   frames -> channels, sessions, links, messages and their outcomes
    pairing        which delivery is of which publish, across connections

Under all of them: `compiler` (kernels), `hashes`, `variant` (values of frames), and the modules of this folder, of
which `tables` says each column once. Functions take and return numpy arrays. Wire bytes never raise.

Kernels take records and arrays under short names: `c` a CONNECTION, `d` and `peer` the DIRECTION of both directions,
`s` a Stream, `g` a SEGMENT, `w` a VARIANT Writer, `t` the tables of a version, `v` those for writing values, `a` the
assemblies of 0-10, `dl` the deliveries of 1.0.
"""
