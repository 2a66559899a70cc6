"""The ordered bytes of a connection -> rows of frames.

connection, transport, tcp_stalls    what is known of a TCP connection; how a segment is added to it
layered, proxy_header                what the layers around AMQP tell in its bytes
detection                            the version of a connection, and frames after a loss
classic_frames, v0_10_frames         frames, contents and assemblies of these families
v1_0_frames, v1_0_deliveries         frames, and messages of several transfers
stream                               a step of a connection: bytes -> rows
connection_state                     all of that between two segments, saved and restored
"""
