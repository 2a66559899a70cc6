"""Runs of segments in, rows of frames and facts of connections out.

`flow_order` puts runs in order and feeds the decoder (`codec.amqp.decoder`); `key_logs` has the TLS secrets for it.
`frame_rows`, `stall_rows` and `connection_rows` make Arrow columns of what it returns.
"""
