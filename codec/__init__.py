"""Bytes to columns: captures, TCP segments and AMQP frames, without Spark, files or a clock.

`codec.capture` walks packet records, `codec.net` finds and orders TCP segments, `codec.amqp` decodes the five versions
of the protocol. All of it takes numpy arrays of octets and returns arrays; wire bytes never raise.
"""
